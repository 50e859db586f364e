"""Sharded variables over several processes begin with the values that one device would give them."""

from __future__ import annotations

import contextlib
import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess


def born(strategy: rx.Strategy, seed: int) -> dict[str, Any]:
    """Returns first values, drawn with a seed of this process's, and how many elements of the largest one came here."""
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(64),
                keras.layers.Dense(64, kernel_initializer=keras.initializers.RandomNormal(seed=seed)),
                keras.layers.Dense(64, kernel_initializer="orthogonal"),
                keras.layers.Dense(4, kernel_initializer=keras.initializers.Constant(0.5)),
            ]
        )
        given = rx.Variable(np.full((64, 2), seed, np.float32), name="given")
    return {
        "values": [np.asarray(variable).tolist() for variable in (*model.variables, given)],
        "sharded": sum(not variable.value.is_fully_replicated for variable in model.variables),
    }


def worker() -> dict[str, Any]:
    strategy = rx.FullyShardedStrategy(min_size=64, start_timeout=60)
    found = born(strategy, 10 + strategy.worker_index)
    # Devices that are given stay this process's own: nobody waits for the other.
    local = rx.FullyShardedStrategy(devices=["cpu:0", "cpu:2"], min_size=64)
    assert (local.num_workers, local.is_chief, local.num_replicas_in_sync) == (1, True, 2)
    if strategy.is_chief:
        assert born(local, 7)["sharded"] >= 4
    everywhere = rx.FullyShardedStrategy(devices=jax.devices())
    assert (everywhere.workers, everywhere.worker_index) == (strategy.workers, strategy.worker_index)
    for devices, message in ((jax.devices()[:3], None), (jax.devices()[::-1], "first device")):
        if message is None and not strategy.is_chief:
            message = "have none"
        with pytest.raises(ArgumentError, match=message) if message else contextlib.nullcontext():
            rx.FullyShardedStrategy(devices=devices)
    return found


@pytest.mark.nightly
def test_all_begin_with_the_values_of_the_first():
    first, second = run_workers(worker, 2, 4)
    assert first == second
    assert first["sharded"] >= 4
    for found, expected in zip(first["values"], born(rx.OneDeviceStrategy("cpu:0"), 10)["values"], strict=True):
        np.testing.assert_array_equal(found, expected)
