"""Keras's own files of weights, loaded in the scope of strategies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.contracts.variable_access import array_of


def small_model() -> keras.Model:
    layers = [
        keras.layers.Dense(256, name="up"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Dense(64, name="down"),
    ]
    return keras.Sequential([keras.layers.Input((64,)), *layers])


def values_of(model: keras.Model) -> list[np.ndarray]:
    return [np.array(variable) for variable in model.weights]


def layout_strategy() -> rx.LayoutStrategy:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("batch", "model"))
    return rx.LayoutStrategy(
        mesh, {"up/kernel": (None, "model"), "down/kernel": ("model", None), "up/bias": ("model",)}
    )


STRATEGIES: dict[str, Callable[[], rx.Strategy]] = {
    "fully_sharded": lambda: rx.FullyShardedStrategy(8, min_size=64),
    "layout": layout_strategy,
    "mirrored": lambda: rx.MirroredStrategy(devices=2),
    "one_device": lambda: rx.OneDeviceStrategy("cpu:3"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[np.ndarray]]:
    """A trained model on one device, in each of Keras's formats."""
    folder = tmp_path_factory.mktemp("saved")
    keras.utils.set_random_seed(1)
    model = small_model()
    model.compile("adam", "mse")
    model.fit(np.ones((8, 64)), np.ones((8, 64)), verbose=0)
    model.save_weights(folder / "a.weights.h5")
    model.save_weights(folder / "b.weights.json", max_shard_size=1e-4)
    model.save(folder / "c.keras")
    return folder, values_of(model)


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", ["a.weights.h5", "b.weights.json", "c.keras"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_are_those_of_plain_keras_and_lie_in_their_layout(
    saved: tuple[Path, list[np.ndarray]], name: str, strategy: str
) -> None:
    folder, expected = saved
    chosen = STRATEGIES[strategy]()
    with chosen.scope():
        model = small_model()
    model.load_weights(folder / name)
    for variable in model.weights:
        assert array_of(variable).sharding == chosen.placement.variable_sharding(variable), variable.path
    for value, variable in zip(expected, values_of(model), strict=True):
        np.testing.assert_array_equal(value, variable)
