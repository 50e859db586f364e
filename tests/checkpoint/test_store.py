"""Named arrays on disk."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax import dtensor
from replicax.checkpoint import Entry, damaged_files, entries, read_arrays, write_arrays
from replicax.errors import CheckpointError


def spec(shape, dtype=np.float32, sharding=None):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    arrays = {"a": jnp.arange(6.0).reshape(2, 3), "deep/b": np.int32(7), "half": jnp.ones(4, jnp.bfloat16)}
    return write_arrays(tmp_path / "checkpoint", arrays)


def test_arrays_come_back(written: Path):
    read = read_arrays(written, {"a": spec((2, 3)), "deep/b": spec((), np.int32), "half": spec((4,), jnp.bfloat16)})
    np.testing.assert_array_equal(read["a"], np.arange(6.0).reshape(2, 3))
    assert isinstance(read["a"], np.ndarray)
    assert read["deep/b"] == 7
    assert read["half"].dtype == jnp.bfloat16


def test_only_what_is_wanted_is_read(written: Path):
    assert list(read_arrays(written, {"deep/b": spec((), np.int32)})) == ["deep/b"]


def test_values_are_converted_to_the_wanted_dtype(written: Path):
    assert read_arrays(written, {"half": spec((4,), np.float32)})["half"].dtype == np.float32


def test_arrays_are_read_into_a_sharding(written: Path):
    mesh = dtensor.create_mesh([("x", 2)], devices=["cpu:0", "cpu:1"])
    sharding = dtensor.Layout(["x", dtensor.UNSHARDED], mesh).to_sharding()
    read = read_arrays(written, {"a": spec((2, 3), sharding=sharding)})["a"]
    assert read.sharding == sharding
    np.testing.assert_array_equal(read.addressable_shards[1].data, [[3.0, 4.0, 5.0]])


def test_entries_tell_shapes_and_stored_dtypes(written: Path):
    assert entries(written) == {
        "a": Entry((2, 3), np.dtype(np.float32)),
        "deep/b": Entry((), np.dtype(np.int32)),
        "half": Entry((4,), np.dtype(jnp.bfloat16)),
    }


def test_an_existing_directory_is_left_alone(written: Path):
    with pytest.raises(CheckpointError, match="exists already"):
        write_arrays(written, {"a": jnp.zeros(1)})
    assert entries(written)["a"].shape == (2, 3)


def test_nothing_to_write_is_an_error(tmp_path: Path):
    with pytest.raises(CheckpointError, match="no arrays"):
        write_arrays(tmp_path / "empty", {})
    assert not (tmp_path / "empty").exists()


def test_a_missing_checkpoint_is_an_error(tmp_path: Path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        entries(tmp_path / "nothing")


def test_another_directory_is_no_checkpoint(tmp_path: Path):
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        entries(tmp_path)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(written: Path):
    with pytest.raises(CheckpointError, match=r"no \['c'\].*deep/b"):
        read_arrays(written, {"c": spec((1,))})


def test_another_shape_is_an_error(written: Path):
    with pytest.raises(CheckpointError, match=r"'a' has shape \(2, 3\).*expected \(3, 2\)"):
        read_arrays(written, {"a": spec((3, 2))})


def test_a_damaged_checkpoint_is_an_error(written: Path):
    """A missing file would otherwise be read as zeros."""
    (data,) = written.glob("*-a/0.0")
    data.unlink()
    with pytest.raises(CheckpointError, match=r"damaged.*-a/0\.0"):
        read_arrays(written, {"a": spec((2, 3))})


def test_a_checkpoint_without_its_metadata_is_incomplete(written: Path):
    (written / "metadata.json").unlink()
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        read_arrays(written, {"a": spec((2, 3))})


def test_changed_contents_are_found(written: Path):
    assert damaged_files(written) == {}
    (data,) = written.glob("*-a/0.0")
    data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))
    (damage,) = damaged_files(written).items()
    assert damage == (data.relative_to(written).as_posix(), "has other contents than were written")


def test_paths_in_the_metadata_stay_inside(written: Path):
    plain = json.loads((written / "metadata.json").read_text())
    plain["files"]["../../secret"] = {"bytes": 0, "sha256": ""}
    (written / "metadata.json").write_text(json.dumps(plain))
    with pytest.raises(CheckpointError, match="no path inside"):
        entries(written)


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

    monkeypatch.setattr("replicax.checkpoint.store._orbax_save", full)
    with pytest.raises(CheckpointError, match="No space left"):
        write_arrays(tmp_path / "c", {"a": jnp.ones(2)})
    assert list(tmp_path.iterdir()) == []
