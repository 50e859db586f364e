"""The peak of memory while a sharded model is loaded and saved: one tensor comes on top, on devices and on the host."""

from __future__ import annotations

import collections
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.contracts.variable_access import array_of
from replicax.weights import reading
from replicax.weights.pieces import Tensor, placed

WIDTH, LAYERS = 512, 6
LARGEST = WIDTH * WIDTH * 4
TOTAL = LAYERS * LARGEST
SMALL = 300_000  # bytes of Python's own objects, and of biases


def model() -> keras.Model:
    layers = [keras.layers.Dense(WIDTH, use_bias=False, name=f"dense{i}") for i in range(LAYERS)]
    return keras.Sequential([keras.Input((WIDTH,)), *layers])


def bytes_on_devices() -> dict[jax.Device, int]:
    buffers = {
        (shard.device, shard.data.unsafe_buffer_pointer()): shard.data.nbytes
        for array in jax.live_arrays()
        if not array.is_deleted()
        for shard in array.addressable_shards
    }
    held: collections.Counter[jax.Device] = collections.Counter()
    for (device, _), size in buffers.items():
        held[device] += size
    return held


@pytest.fixture
def sharded(tmp_path: Path) -> tuple[keras.Model, Path]:
    source = model()
    source.save_weights(tmp_path / "a.weights.h5")
    source.save(tmp_path / "a.keras")
    rx.weights.save_safetensors(source, tmp_path / "a.safetensors")
    del source
    with rx.FullyShardedStrategy(8).scope():
        made = model()
    made.load_weights(tmp_path / "a.weights.h5")  # From here on each variable lies in its layout.
    return made, tmp_path


def most_memory(action: Callable[[], object]) -> int:
    """Returns the most memory of Python and NumPy that `action` takes at a time."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def loads(made: keras.Model, folder: Path) -> dict[str, Callable[[], object]]:
    return {
        "h5": lambda: made.load_weights(folder / "a.weights.h5"),
        "keras": lambda: made.load_weights(folder / "a.keras"),
        "safetensors": lambda: rx.weights.load_safetensors(made, folder / "a.safetensors"),
    }


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", ["h5", "keras", "safetensors"])
def test_no_device_has_more_than_its_part_and_one_piece(sharded: tuple[keras.Model, Path], kind: str) -> None:
    before = bytes_on_devices()
    seen: list[int] = []

    def place(tensor: Tensor, sharding: jax.sharding.Sharding, dtype: np.dtype) -> jax.Array:
        value = placed(tensor, sharding, dtype)
        now = bytes_on_devices()  # The old value of the variable is there, and the new one.
        seen.append(max(now[device] - before[device] for device in now))
        return value

    with mock.patch.object(reading, "placed", place):
        loads(*sharded)[kind]()
    assert len(seen) == LAYERS
    assert max(seen) <= LARGEST // 8 + SMALL // 8


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", ["h5", "keras", "safetensors"])
def test_the_host_has_one_tensor_at_a_time(sharded: tuple[keras.Model, Path], kind: str) -> None:
    load = loads(*sharded)[kind]
    load()
    assert most_memory(load) <= LARGEST * 1.1 + 4 * SMALL  # the pieces of a tensor, and a block of its rows


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", ["weights.h5", "safetensors", "keras"])
def test_saving_has_one_tensor_at_a_time_on_the_host_and_leaves_none(
    sharded: tuple[keras.Model, Path], kind: str
) -> None:
    made, folder = sharded
    path = folder / f"saved.{kind}"
    saves = {
        "weights.h5": lambda: made.save_weights(path),
        "safetensors": lambda: rx.weights.save_safetensors(made, path),
        "keras": lambda: made.save(path),
    }
    expected = [np.array(shard.data) for v in made.weights for shard in array_of(v).addressable_shards]
    saves[kind]()
    assert most_memory(saves[kind]) <= LARGEST * 1.1 + 4 * SMALL
    for variable in made.weights:
        assert keeps_nothing(array_of(variable))
    again = model()
    rx.weights.load_safetensors(again, path) if kind == "safetensors" else again.load_weights(path)
    shards = [np.asarray(v)[s.index] for v, m in zip(again.weights, made.weights, strict=True) for s in shards_of(m)]
    for value, found in zip(expected, shards, strict=True):
        np.testing.assert_array_equal(value, found)


def shards_of(variable: keras.Variable) -> list[jax.Shard]:
    return array_of(variable).addressable_shards


def keeps_nothing(array: jax.Array) -> bool:
    """Returns whether an array has no copy on the host: JAX's conversion to NumPy leaves one."""
    return array._npy_value is None and all(shard.data._npy_value is None for shard in array.addressable_shards)
