from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import replicax as rx
from tests.strategies.compressed import Mlp

WIDTHS, ROWS = (64, 128, 64), 24
OPTIMIZERS = ["Adam", "SGD", "Lamb", "Muon", "Adafactor"]


def trained(name: str, **options: Any) -> Mlp:
    mlp = Mlp(rx.MirroredStrategy(**options), WIDTHS)
    with mlp.strategy.scope():
        mlp.optimizer = getattr(keras.optimizers, name)(learning_rate=0.01)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(ROWS, WIDTHS[0])).astype("float32"), random.integers(0, 9, ROWS, "int32")
    mlp.train(x, y, steps=4, batch=ROWS)
    mlp.train(x, y, steps=1, batch=6)  # On six replicas of eight.
    return mlp


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if hasattr(keras.optimizers, name)])
def test_the_sharded_update_is_that_of_the_whole(name):
    """Also where an update needs all of a parameter: its norm (Lamb), its products (Muon), its rows (Adafactor)."""
    sharded, whole = (trained(name, devices=8, shard_update=each) for each in (True, False))
    assert all(variable.value.sharding.is_fully_replicated for variable in whole.optimizer.variables)
    for value, expected in zip(sharded.model.trainable_variables, whole.model.trainable_variables, strict=True):
        difference = np.linalg.norm(value.numpy() - expected.numpy()) / np.linalg.norm(expected.numpy())
        assert difference < 1e-6


@pytest.mark.parametrize("compression", [None, "bfloat16", "int8", "powersgd"])
def test_compression_of_gradients_turns_it_off_unless_it_is_asked_for(compression):
    options = rx.CommunicationOptions(compression=compression)
    assert rx.MirroredStrategy(2, communication_options=options).shard_update is (compression in (None, "bfloat16"))
    assert rx.MirroredStrategy(2, communication_options=options, shard_update=True).shard_update
