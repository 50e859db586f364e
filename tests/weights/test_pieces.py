"""Random tensors in random layouts and places: each device gets its part, bit for bit, and each byte is read once."""

from __future__ import annotations

import io
import math
from pathlib import Path
from unittest import mock

import h5py
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import NamedSharding, PartitionSpec

from replicax.errors import WeightsError
from replicax.weights import regions
from replicax.weights.h5 import Place, tensor_of
from replicax.weights.pieces import ArrayTensor, Tensor, placed
from replicax.weights.reading import whole
from replicax.weights.regions import FileRegion

AXES = ("a", "b", "c")
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint32", "bool"]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], NamedSharding]:
    """A shape, and a sharding over a mesh of 2 x 2 x 2 devices that divides it."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 2, 2), AXES)
    dims = draw(st.integers(0, 3))
    owners = draw(st.lists(st.sampled_from([None, *range(dims)]), min_size=3, max_size=3))
    axes = [tuple(axis for axis, owner in zip(AXES, owners, strict=True) if owner == dim) for dim in range(dims)]
    shape = tuple(2 ** len(cut) * draw(st.integers(0 if not cut else 1, 4)) for cut in axes)
    return shape, NamedSharding(mesh, PartitionSpec(*(cut or None for cut in axes)))


def values_of(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 9, shape).astype(jnp.dtype(dtype))


def check(tensor: Tensor, expected: np.ndarray, sharding: NamedSharding, dtype: str) -> None:
    array = placed(tensor, sharding, np.dtype(jnp.dtype(dtype)))
    assert array.sharding == sharding
    with np.errstate(all="ignore"):
        wanted = expected.astype(array.dtype)
    np.testing.assert_array_equal(np.asarray(array), wanted)


@settings(max_examples=60, deadline=None)
@given(layouts(), st.sampled_from(DTYPES), st.sampled_from(["float32", "bfloat16"]), st.integers(1, 64))
def test_runs_of_bytes_are_read_into_any_layout(
    tmp_path_factory: pytest.TempPathFactory,
    layout: tuple[tuple[int, ...], NamedSharding],
    stored: str,
    wanted: str,
    block: int,
) -> None:
    shape, sharding = layout
    values = values_of(shape, stored)
    path = tmp_path_factory.mktemp("region") / "a"
    path.write_bytes(b"ab" + values.tobytes())
    with mock.patch.object(regions, "_BLOCK_BYTES", block):
        check(FileRegion(path, 2, shape, values.dtype), values, sharding, wanted)
    check(ArrayTensor(values), values, sharding, wanted)


@settings(max_examples=40, deadline=None)
@given(layouts(), st.sampled_from(DTYPES), st.booleans())
def test_datasets_of_hdf5_are_read_into_any_layout(
    tmp_path_factory: pytest.TempPathFactory,
    layout: tuple[tuple[int, ...], NamedSharding],
    stored: str,
    compressed: bool,
) -> None:
    shape, sharding = layout
    values = values_of(shape, stored)
    path = tmp_path_factory.mktemp("h5") / "a.h5"
    with h5py.File(path, "w") as file:
        how = {"compression": "gzip"} if compressed and math.prod(shape) and shape else {}
        file.create_dataset("x", data=values, **how).attrs["dtype"] = stored
    with h5py.File(path) as file:
        tensor = tensor_of(file["x"], Place(path))
    check(tensor, values, sharding, "float32")
    np.testing.assert_array_equal(whole(tensor, values.dtype), values)


@pytest.mark.parametrize("spec", [PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec()])
def test_each_byte_is_read_once_and_the_memory_is_jaxs(tmp_path: Path, spec: PartitionSpec) -> None:
    values = values_of((64, 48), "float32")
    (tmp_path / "a").write_bytes(values.tobytes())
    sharding = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[:8]), ("x",)), spec)
    read: list[int] = []
    hosts: list[memoryview] = []  # held, so that nothing else gets their place

    class Counted(io.FileIO):
        def readinto(self, memory: memoryview) -> int:
            read.append(len(memory))
            hosts.append(memory)
            return super().readinto(memory)

    with mock.patch.object(regions, "open", lambda path, mode, buffering: Counted(path, mode), create=True):
        array = placed(FileRegion(tmp_path / "a", 0, (64, 48), np.dtype("f4")), sharding, np.dtype("f4"))
    assert sum(read) == values.nbytes
    # What JAX has not made itself it cannot update in place.
    addresses = {np.frombuffer(memory, np.uint8).ctypes.data for memory in hosts}
    assert not {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards} & addresses


def test_a_process_reads_the_rows_of_its_own_devices_only(tmp_path: Path) -> None:
    """With devices of other processes the map of indices has this process's alone."""
    values = values_of((64, 8), "float32")
    (tmp_path / "a").write_bytes(values.tobytes()[: 32 * 8 * 4])  # The other half is not there at all.
    sharding = NamedSharding(jax.sharding.Mesh(np.array(jax.devices()[:8]), ("x",)), PartitionSpec("x"))
    region = FileRegion(tmp_path / "a", 0, (64, 8), np.dtype("f4"))
    own = {d: i for d, i in sharding.addressable_devices_indices_map((64, 8)).items() if d in jax.devices()[:4]}
    made: list[list[jax.Array]] = []
    with (
        mock.patch.object(NamedSharding, "addressable_devices_indices_map", return_value=own),
        mock.patch.object(NamedSharding, "addressable_devices", set(own)),
        mock.patch.object(jax, "make_array_from_single_device_arrays", lambda s, p, arrays, dtype: made.append(arrays)),
    ):
        placed(region, sharding, np.dtype("f4"))
    got = {next(iter(array.devices())): np.asarray(array) for array in made[0]}
    for device, index in own.items():
        np.testing.assert_array_equal(got[device], values[index])
    with pytest.raises(WeightsError, match=r"ends at byte 1024, .* not written or copied completely"):
        placed(region, sharding, np.dtype("f4"))
