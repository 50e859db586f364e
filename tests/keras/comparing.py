"""Doing the same with a model of a strategy and with an ordinary one, and comparing all that comes out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

TOLERANCE = 1e-5
FEATURES, CLASSES = 6, 3

_random = np.random.default_rng(0)
X = _random.normal(size=(21, FEATURES)).astype("float32")
LABELS = _random.integers(CLASSES, size=21)
Y = np.eye(CLASSES, dtype="float32")[LABELS]


def made(strategy: Any, make: Callable[[], Any]) -> Any:
    """Returns `make()`, called in the strategy's scope if there is one, with the same initial weights each time."""
    keras.utils.set_random_seed(0)
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        return make()


def classifier(*layers: keras.Layer, optimizer: Any = None, **compiled: Any) -> keras.Model:
    """Returns a small model with `layers` in its middle, compiled to tell classes apart."""
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(5, activation="tanh"), *layers, keras.layers.Dense(CLASSES)]
    )
    settings = {"loss": keras.losses.CategoricalCrossentropy(from_logits=True), "metrics": ["accuracy"], **compiled}
    model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), **settings)
    return model


def state_of(model: Any) -> list[np.ndarray]:
    """Returns all that training has changed, whether or not `get_weights` shows it."""
    optimizer = model.optimizer.variables if getattr(model, "optimizer", None) is not None else []
    return [np.asarray(variable.value) for variable in (*model.variables, *optimizer)]


def trained(model: Any, x: Any, y: Any = None, *, batch_size: int | None = 7, **fit: Any) -> dict[str, Any]:
    """Trains a compiled model and returns what came out of it."""
    history = model.fit(x, y, batch_size=batch_size, **{"epochs": 2, "verbose": 0, **fit}).history
    return {"history": history, "state": state_of(model)}


def worked(model: Any, x: Any, y: Any = None, *, batch_size: int | None = 7, **fit: Any) -> dict[str, Any]:
    """Trains, evaluates and predicts with a compiled model and returns what came out of it."""
    return {
        **trained(model, x, y, batch_size=batch_size, **fit),
        "evaluation": model.evaluate(x, y, batch_size=batch_size, verbose=0, return_dict=True),
        "predictions": model.predict(x, batch_size=batch_size, verbose=0),
    }


def assert_same(actual: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """Compares two nests of numbers: same structure, same shapes, no difference above `tolerance`."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    paths = jax.tree_util.tree_leaves_with_path(actual)
    for (path, one), other in zip(paths, jax.tree.leaves(expected), strict=True):
        name = jax.tree_util.keystr(path)
        assert np.shape(one) == np.shape(other), name
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=name)


def assert_same_with_and_without(
    strategy: Any,
    make: Callable[[], Any],
    *data: Any,
    work: Callable[..., Any] = trained,
    tolerance: float = TOLERANCE,
    **fit: Any,
) -> Any:
    """Compares what work with a model made in the strategy's scope gives, and with one made outside of every scope.

    Returns:
        The latter.
    """
    data = data or (X, Y)
    expected = work(made(None, make), *data, **fit)
    assert_same(work(made(strategy, make), *data, **fit), expected, tolerance)
    return expected
