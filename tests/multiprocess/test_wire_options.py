"""Options for what travels between processes: compressed gradients, and updates that are sharded over the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import replicax as rx
from tests.multiprocess.workers import run_workers
from tests.strategies.compressed import Mlp, Regression, data

pytestmark = pytest.mark.multiprocess
KINDS = {"int8": rx.collectives.Int8(block_size=64, min_size=64), "powersgd": rx.collectives.PowerSGD(rank=1)}
WIDTHS, ROWS = (64, 160, 128), 12


def regression(compression: str) -> dict[str, Any]:
    options = rx.CommunicationOptions(compression=KINDS[compression])
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    return trained(strategy)


def trained(strategy: rx.Strategy) -> dict[str, Any]:
    training = Regression(strategy)
    losses = training.train([*data(4), *data(1, rows=1), *data(2, seed=1)])
    error = strategy.gradient_memory["0"]["error"]
    large = Mlp(strategy, (64, 600, 10))  # Values that are too large to be exchanged while a step is traced.
    large.train(*rows(), steps=3, batch=ROWS)
    return {
        "losses": losses,
        "w": training.w.numpy().tolist(),
        "error": error.numpy().tolist(),
        "large": np.asarray(large.model.trainable_variables[0].numpy()).tolist(),
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    "compression", [pytest.param(kind, marks=() if kind == "int8" else pytest.mark.nightly) for kind in KINDS]
)
def test_compressed_gradients_of_two_processes_are_those_of_two_devices(compression):
    results = run_workers(regression, workers=2, devices=1, compression=compression)
    assert results[0] == results[1]
    options = rx.CommunicationOptions(compression=KINDS[compression])
    expected = trained(rx.MirroredStrategy(devices=2, communication_options=options))
    for name, found in results[0].items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-5, atol=2e-5)


def sharded_update(folder: str, shard_update: bool) -> dict[str, Any]:
    strategy = rx.MultiWorkerMirroredStrategy(shard_update=shard_update)
    mlp = loop(strategy)
    checkpoint = rx.Checkpoint(model=mlp.model, optimizer=mlp.optimizer)
    path = checkpoint.write(f"{folder}/{shard_update}")
    slots = [variable for variable in mlp.optimizer.variables if np.prod(variable.shape) >= 2**12]
    shards = [variable._value.addressable_shards[0].data.size / np.prod(variable.shape) for variable in slots]
    mlp.model.compile(mlp.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    mlp.model.save(f"{folder}/{strategy.worker_index}-{shard_update}.keras")
    before = weights(mlp)
    x, y = rows()
    mlp.model.fit(x, y, batch_size=ROWS, verbose=0)
    after_fit = weights(mlp)
    checkpoint.restore(path)
    mlp.train(x, y, steps=2, batch=ROWS)
    return {"weights": before, "after fit": after_fit, "restored": weights(mlp), "shards": shards}


def rows() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(3 * ROWS, WIDTHS[0])).astype("float32"), random.integers(0, 9, 3 * ROWS, "int32")


def loop(strategy: rx.Strategy) -> Mlp:
    mlp = Mlp(strategy, WIDTHS)
    x, y = rows()
    mlp.train(x, y, steps=3, batch=ROWS)
    mlp.train(x, y, steps=1, batch=1)  # On one replica, which needs the whole state.
    mlp.train(x, y, steps=1, batch=ROWS)
    return mlp


def weights(mlp: Mlp) -> list[Any]:
    return [np.asarray(variable.numpy()).tolist() for variable in mlp.model.trainable_variables]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_sharded_update_computes_the_same(tmp_path: Path):
    sharded = run_workers(sharded_update, workers=2, devices=1, folder=str(tmp_path), shard_update=True)
    whole = run_workers(sharded_update, workers=2, devices=1, folder=str(tmp_path), shard_update=False)
    assert sharded[0] == sharded[1]
    assert sharded[0].pop("shards") == [0.5] * 4  # Two moments of two kernels.
    assert whole[0].pop("shards") == [1.0] * 4
    for name, found in sharded[0].items():
        for value, expected in zip(found, whole[0][name], strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)
    alone = loop(rx.OneDeviceStrategy("cpu:0"))
    for value, expected in zip(sharded[0]["weights"], weights(alone), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
