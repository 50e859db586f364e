"""Arrays as files: what Orbax reads and writes, and who writes which chunk."""

from __future__ import annotations

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import replicax as rx
from replicax.checkpoint import array_files, read_arrays, read_metadata, write_arrays
from replicax.checkpoint.array_files import begin_reading, chunks_of, grid_of, read_by
from replicax.errors import CheckpointError


def sharding(*axes):
    return NamedSharding(Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b")), PartitionSpec(*axes))


def test_orbax_reads_what_was_written(tmp_path: Path):
    import orbax.checkpoint as ocp

    arrays = {"a": jax.device_put(jnp.arange(32.0).reshape(8, 4), sharding("a")), "b": np.arange(3, dtype=np.int32)}
    path = write_arrays(tmp_path / "c", arrays)
    folders = {name: entry.folder for name, entry in read_metadata(path).arrays.items()}
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    item = {folder: jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype) for name, folder in folders.items()}
    wanted = {folder: ocp.RestoreArgs(restore_type=np.ndarray) for folder in folders.values()}
    found = handler.restore(path, args=ocp.args.PyTreeRestore(item, restore_args=wanted))
    handler.close()
    for name, folder in folders.items():
        np.testing.assert_array_equal(found[folder], arrays[name])


def test_a_folder_of_orbaxs_is_read(tmp_path: Path):
    import orbax.checkpoint as ocp
    from etils import epath

    array = jax.device_put(jnp.arange(32.0).reshape(8, 4), sharding("a"))
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    handler.save(epath.Path(tmp_path / "c"), args=ocp.args.PyTreeSave({"a": array}))
    handler.close()
    files = {path.name: path.read_bytes() for path in (tmp_path / "c" / "a").iterdir()}
    wanted = jax.ShapeDtypeStruct((8, 4), np.float32, sharding=sharding("b", "a"))
    np.testing.assert_array_equal(begin_reading(files, wanted)(), array)


@pytest.mark.parametrize(
    ("shape", "axes", "largest"),
    [
        ((8, 4), ("a",), 1 << 28),
        ((8, 4), (("a", "b"),), 1 << 28),
        ((8, 4), (), 1 << 28),
        ((1024, 512), (), 1 << 28),  # devices that hold the same share the writing
        ((1024, 512), ("a",), 1 << 28),
        ((14, 10), ("a", "b"), 64),  # chunks of a shard do not reach into the next
        ((13, 11), (), 64),
        ((), (), 1 << 28),
    ],
)
def test_each_part_is_written_once_and_read_by_who_needs_it(shape, axes, largest):
    array = jax.device_put(jnp.arange(math.prod(shape), dtype=jnp.float32).reshape(shape), sharding(*axes))
    files: dict[str, bytes] = {}
    for chunk in chunks_of(array, is_chief=True, largest=largest):
        for name, data in chunk.files():
            assert name == array_files.DESCRIPTION or name not in files
            files[name] = data
            assert name == array_files.DESCRIPTION or math.prod(chunk.grid) * 4 <= max(largest, 4)
    grid = grid_of(files[array_files.DESCRIPTION])
    other = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding())
    assert read_by(other, grid) == files.keys() - {array_files.DESCRIPTION}
    np.testing.assert_array_equal(begin_reading(dict(files), other)(), array)
    own = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=array.sharding)
    np.testing.assert_array_equal(
        begin_reading({name: files[name] for name in {*read_by(own, grid), ".zarray"}}, own)(), array
    )


@pytest.mark.parametrize("dtype", ["bool", "int4", "int32", "bfloat16", "float8_e4m3fn", "float16", "complex64"])
def test_dtypes(dtype, tmp_path: Path):
    array = jnp.array([0, 1, 1], dtype)
    path = rx.Checkpoint(a=array).write(tmp_path / "c")
    found = read_arrays(path, {"a": jax.ShapeDtypeStruct((3,), array.dtype)})["a"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("dtype", "held", "lost"),
    [
        ("float32", [2**24, -(2**24), 2**30, 0, -(2**31)], [2**24 + 1, -(2**24) - 1]),
        ("bfloat16", [256, 258, -(2**20)], [257, -2049]),
        ("float16", [2048, 2050, 65504], [2049, 65520]),
        ("complex64", [2**24 + 2], [2**24 + 1]),
    ],
)
@pytest.mark.parametrize("size", [32, 64])
def test_integers_are_restored_into_floats_that_hold_them(
    dtype: str, held: list[int], lost: list[int], size: int, tmp_path: Path
):
    wanted = {"a": jax.ShapeDtypeStruct((), jnp.dtype(dtype))}
    for i, number in enumerate([*held, *lost]):
        path = write_arrays(tmp_path / str(i), {"a": np.array(number, f"int{size}")})
        if number in held:
            assert complex(read_arrays(path, wanted)["a"]) == number
        else:
            with pytest.raises(CheckpointError, match=f"{number} does not fit into {dtype}"):
                read_arrays(path, wanted)


def test_the_largest_integers_are_not_rounded(tmp_path: Path):
    path = write_arrays(tmp_path / "c", {"a": np.array([0, 2**63 - 1]), "b": np.array([2**63, -0, 0], np.uint64)})
    with pytest.raises(CheckpointError, match=f"{2**63 - 1} does not fit into float64"):
        read_arrays(path, {"a": jax.ShapeDtypeStruct((2,), np.float64)})
    assert read_arrays(path, {"b": jax.ShapeDtypeStruct((3,), np.float32)})["b"][0] == 2.0**63


def test_integers_that_wait_for_a_float_are_not_rounded(tmp_path: Path):
    path = rx.Checkpoint({"model/0": np.full((4, 1), 2**24 + 1)}).write(tmp_path / "c")
    layer = keras.layers.Dense(1, use_bias=False)
    rx.Checkpoint(model=layer).restore(path)
    with pytest.raises(CheckpointError, match=r"'model/0'.*16777217 does not fit into float32"):
        layer.build((None, 4))
