"""Named arrays on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax import dtensor
from replicax.checkpoint import Entry, entries, read_arrays, write_arrays
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
    for data in written.rglob("d"):
        shutil.rmtree(data)
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        read_arrays(written, {"a": spec((2, 3))})
