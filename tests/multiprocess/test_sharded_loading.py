"""Files of weights loaded over several processes: each reads what its own devices need, and no more."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.weights import regions
from tests.multiprocess.test_sharded import STRATEGIES
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess
FILES = ["a.weights.h5", "b.weights.json", "c.keras", "d.safetensors"]
ROWS = 128  # of the table, which is cut by rows


def model() -> keras.Model:
    """A model with one large variable, which FullyShardedStrategy cuts by rows."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,), dtype="int32")
    hidden = keras.layers.Embedding(ROWS, 6, name="table")(inputs)
    hidden = keras.layers.Dense(24, "tanh", name="down")(keras.layers.Flatten(name="flat")(hidden))
    return keras.Model(inputs, keras.layers.Dense(3, name="head")(hidden))


def worker(folder: str) -> dict[str, Any]:
    counted = [0]
    real = regions.FileRegion._read

    def read(self: regions.FileRegion, file: int, offset: int, values: np.ndarray) -> None:
        counted[0] += values.nbytes
        real(self, file, offset, values)

    regions.FileRegion._read = read
    strategy = STRATEGIES["fully_sharded"][0]()
    found: dict[str, Any] = {}
    for name in FILES:
        with strategy.scope():
            loaded = model()
        for variable in loaded.weights:
            variable.assign(np.zeros(variable.shape))
        counted[0] = 0
        if name.endswith(".safetensors"):
            rx.weights.load_safetensors(loaded, Path(folder, name))
        else:
            loaded.load_weights(Path(folder, name))
        predicted = loaded.predict(np.arange(96).reshape(16, 6), verbose=0)
        found[name] = {
            "bytes": counted[0],
            "table": [shard.data.shape for shard in loaded.weights[0].value.addressable_shards],
            "weights": [np.asarray(variable).tolist() for variable in loaded.weights],
            "predicted": np.asarray(predicted).tolist(),
        }
    return found


@pytest.mark.nightly
def test_each_process_reads_what_its_devices_need(tmp_path: Path) -> None:
    source = model()
    for variable in source.weights:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    source.save_weights(tmp_path / "a.weights.h5")
    source.save_weights(tmp_path / "b.weights.json", max_shard_size=1e-5)
    source.save(tmp_path / "c.keras")
    rx.weights.save_safetensors(source, tmp_path / "d.safetensors")
    expected = [np.asarray(variable) for variable in source.weights]
    sizes = [value.nbytes for value in expected]
    predicted = source.predict(np.arange(96).reshape(16, 6), verbose=0)
    for found in run_workers(worker, 2, 4, folder=str(tmp_path)):
        for name in FILES:
            for value, loaded in zip(expected, found[name]["weights"], strict=True):
                np.testing.assert_array_equal(value, np.asarray(loaded, np.float32), err_msg=name)
            np.testing.assert_allclose(found[name]["predicted"], predicted, rtol=1e-5, atol=1e-5)
            assert [tuple(shape) for shape in found[name]["table"]] == [(ROWS // 8, 6)] * 4
            assert found[name]["bytes"] <= sum(sizes) - sizes[0] // 2, name
    assert jax.process_count() == 1
