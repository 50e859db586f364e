"""First values over several processes: each makes the shards of its own devices, from the seeds of the first."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess
SHAPE = (16, 24)


def variables(process: int) -> list[Any]:
    """Returns variables whose seeds and arrays each process draws for itself."""
    keras.utils.set_random_seed(3 + process)
    generator = keras.random.SeedGenerator()
    return [
        keras.Variable(keras.initializers.RandomNormal(0.3, 0.7), shape=SHAPE),
        keras.Variable(keras.initializers.GlorotUniform(seed=generator), shape=SHAPE),
        keras.Variable(keras.initializers.Orthogonal(), shape=SHAPE),
        keras.Variable(np.random.normal(size=SHAPE).astype("float32")),
        rx.Variable(lambda: keras.random.normal(SHAPE, seed=generator)),
        rx.Variable(lambda: jnp.full(SHAPE, 0.1)),
        generator.state,
    ]


def worker() -> dict[str, Any]:
    strategy = rx.FullyShardedStrategy(min_size=8, start_timeout=60)
    with strategy.scope():
        made = variables(jax.process_index())
    parts = [[shard.data.shape for shard in each._value.addressable_shards] for each in made[:-1]]
    return {"parts": parts, "values": [np.asarray(each).tolist() for each in made]}


@pytest.mark.nightly
def test_all_processes_have_the_first_ones_values_and_each_its_own_shards():
    found = run_workers(worker, 2, 4)
    expected = [np.asarray(each) for each in variables(0)]
    for each in found:
        assert each["parts"] == [[[16, 3]] * 4] * 6
        for value, wanted in zip(each["values"], expected, strict=True):
            np.testing.assert_array_equal(np.asarray(value, wanted.dtype), wanted)
