"""Reading a checkpoint: what comes back is what was written, or an error."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import replicax as rx
from replicax import dtensor
from replicax.checkpoint import Entry, damaged_files, entries, read_arrays, read_state, write_arrays
from replicax.checkpoint.array_files import DESCRIPTION, grid_of, read_by
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


@pytest.mark.parametrize("file", ["*-a/0.0", "*-a/.zarray", "_METADATA"])
def test_a_flipped_bit_is_found_while_reading(written: Path, file: str):
    (path,) = written.glob(file)
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 4
    path.write_bytes(contents)
    with pytest.raises(CheckpointError, match=rf"{path.name} has other contents than were written"):
        read_arrays(written, {"a": spec((2, 3))})


def test_checking_can_be_turned_off(written: Path):
    (path,) = written.glob("*-a/.zarray")
    described = dict(reversed(json.loads(path.read_text()).items()))
    path.write_text(json.dumps(described, separators=(",", ":")))  # It says the same, in other bytes.
    wanted = {"a": spec((2, 3))}
    with pytest.raises(CheckpointError, match="other contents"):
        read_arrays(written, wanted)
    np.testing.assert_array_equal(read_arrays(written, wanted, verify=False)["a"], np.arange(6.0).reshape(2, 3))


def test_damage_that_tensorstore_notices_is_named_by_its_file(written: Path):
    (path,) = written.glob("*-a/0.0")
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(CheckpointError, match=r"-a/0\.0 has other contents"):
        read_arrays(written, {"a": spec((2, 3))})
    with pytest.raises(CheckpointError, match="could not be read"):
        read_arrays(written, {"a": spec((2, 3))}, verify=False)


def test_what_is_not_read_is_not_checked(written: Path):
    (path,) = written.glob("*-a/0.0")
    path.write_bytes(b"\0" * path.stat().st_size)
    assert read_arrays(written, {"deep/b": spec((), np.int32)})["deep/b"] == 7


def test_a_part_that_was_added_is_damage(tmp_path: Path):
    devices = np.array([jax.devices()[0], jax.devices()[1]])
    sharding = NamedSharding(jax.sharding.Mesh(devices, ("x",)), PartitionSpec("x"))
    path = write_arrays(tmp_path / "c", {"a": jax.device_put(jnp.arange(4.0), sharding)})
    (first,) = path.glob("*-a/0")
    first.with_name("2").write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match=r"-a/2 was added"):
        read_arrays(path, {"a": spec((4,))})


def test_each_process_checks_the_parts_that_it_reads(tmp_path: Path):
    class HalfOfTheDevices:
        def addressable_devices_indices_map(self, shape: tuple[int, ...]):
            return {"a device": (slice(0, 4), slice(None)), "another": (slice(5, 6), slice(None))}

    layout = dtensor.Layout(["x", dtensor.UNSHARDED], dtensor.create_mesh([("x", 8)]))
    path = write_arrays(tmp_path / "c", {"a": jax.device_put(jnp.ones((8, 2)), layout.to_sharding())})
    grid = grid_of((path / "00000-a" / DESCRIPTION).read_bytes())
    wanted: Any = types.SimpleNamespace(shape=(8, 2), sharding=HalfOfTheDevices())
    assert sorted(read_by(wanted, grid)) == [f"{i}.0" for i in (0, 1, 2, 3, 5)]


@pytest.mark.parametrize(("stored", "wanted"), [(np.complex64, np.float32), (np.float32, np.int32), (np.int32, bool)])
def test_numbers_that_the_wanted_dtype_cannot_hold_are_an_error(tmp_path: Path, stored, wanted):
    path = write_arrays(tmp_path / "c", {"a": np.ones(2, stored)})
    with pytest.raises(CheckpointError, match="cannot hold it"):
        read_arrays(path, {"a": spec((2,), wanted)})


@pytest.mark.parametrize(
    ("stored", "wanted", "held"),
    [(np.int64(2**40), np.int32, 7), (np.int32(-1), np.uint32, 7), (np.float32(1e6), np.float16, np.inf)],
)
@pytest.mark.parametrize("on_devices", [False, True])
def test_values_that_the_wanted_dtype_cannot_hold_are_an_error(tmp_path: Path, stored, wanted, held, on_devices):
    path = write_arrays(tmp_path / "c", {"a": np.array([held, stored])[:1], "b": np.array([7, stored])})
    mesh = jax.make_mesh((1,), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec()) if on_devices else None
    found = read_arrays(path, {"a": jax.ShapeDtypeStruct((1,), wanted, sharding=sharding)})
    assert found["a"].dtype == wanted
    assert found["a"][0] == held
    with pytest.raises(CheckpointError, match=rf"'b' in .*: {stored} does not fit into {np.dtype(wanted)}\."):
        read_arrays(path, {"b": jax.ShapeDtypeStruct((2,), wanted, sharding=sharding)})


def test_a_flipped_bit_in_the_state_is_found(tmp_path: Path):
    path = rx.Checkpoint(step=1).write(tmp_path / "c")
    state = path / "state-00000.json"
    state.write_text(state.read_text().replace("1", "3"))
    with pytest.raises(CheckpointError, match=r"state-00000\.json has other contents"):
        read_state(path)
    with pytest.raises(CheckpointError, match="other contents"):
        rx.Checkpoint(step=0).restore(path)
    assert rx.Checkpoint(step=0).restore(path, verify=False) == {"step": 3}


@pytest.mark.parametrize("size", [1, 50, 1 << 28])
def test_arrays_are_read_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int):
    monkeypatch.setattr("replicax.checkpoint.reading._GROUP_BYTES", size)
    arrays = {f"a{i}": np.full(i, i, np.float32) for i in range(7)}
    path = write_arrays(tmp_path / "c", arrays)
    read = read_arrays(path, {name: spec(array.shape) for name, array in arrays.items()})
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
    (last,) = path.glob("*-a6/0")
    last.write_bytes(last.read_bytes()[::-1])
    with pytest.raises(CheckpointError, match=r"-a6/0 has other contents"):
        read_arrays(path, {name: spec(array.shape) for name, array in arrays.items()})
