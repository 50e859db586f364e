"""Named arrays on disk."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.checkpoint import entries, read_arrays, write_arrays
from replicax.errors import CheckpointError


def spec(shape, dtype=np.float32, sharding=None):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    arrays = {"a": jnp.arange(6.0).reshape(2, 3), "deep/b": np.int32(7), "half": jnp.ones(4, jnp.bfloat16)}
    return write_arrays(tmp_path / "checkpoint", arrays)


def test_an_existing_directory_is_left_alone(written: Path):
    with pytest.raises(CheckpointError, match="exists already"):
        write_arrays(written, {"a": jnp.zeros(1)})
    assert entries(written)["a"].shape == (2, 3)


def test_nothing_to_write_is_an_error(tmp_path: Path):
    with pytest.raises(CheckpointError, match="no arrays"):
        write_arrays(tmp_path / "empty", {})
    assert not (tmp_path / "empty").exists()


def test_empty_arrays_and_any_names(tmp_path: Path):
    arrays = {"../a b/\N{SNOWMAN}": jnp.zeros((0, 3)), "x" * 300: jnp.ones(2), "x": jnp.ones(1), "x/0": jnp.ones(1)}
    path = write_arrays(tmp_path / "c", arrays)
    read = read_arrays(path, {name: spec(array.shape) for name, array in arrays.items()})
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
    assert write_arrays(tmp_path / "empty", {"e": jnp.zeros(0)}).is_dir()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("replicax.checkpoint.writing.save_files", full)
    with pytest.raises(CheckpointError, match="No space left"):
        write_arrays(tmp_path / "c", {"a": jnp.ones(2)})
    assert list(tmp_path.iterdir()) == []


def test_what_it_says_of_itself_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    lacking: list[list[str]] = []
    sync, rename = os.fsync, Path.rename

    def syncs(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    def renames(path: Path, target: Path) -> Path:
        files = [each for each in path.iterdir() if each.is_file() and each.name[0] != "_"]  # those are Orbax's
        lacking.append([each.name for each in files if each.stat().st_ino not in synced])
        assert (path / "metadata.json").is_file()
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", syncs)
    monkeypatch.setattr(Path, "rename", renames)
    path = write_arrays(tmp_path / "c", {"a": jnp.ones(2)})
    assert lacking == [[]]
    assert path.stat().st_ino in synced
    assert tmp_path.stat().st_ino in synced
