"""Optimizers of rows compute what Keras's optimizers compute for rows that are touched in each step."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.tables import row_optimizer
from tests.tables.problem import OPTIMIZERS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_are_those_of_keras(name: str):
    rng = np.random.default_rng(0)
    first = rng.normal(size=(4, 3)).astype("float32")
    own, variable = OPTIMIZERS[name](), keras.Variable(first)
    found = row_optimizer(own)
    rows, slots = jnp.asarray(first), {slot.name: jnp.full((4, 3), slot.first_value) for slot in found.slots}
    for step in map(jnp.asarray, range(1, 6)):
        gradient = jnp.asarray(rng.normal(size=(4, 3)), "float32")
        rows, slots = found.update(rows, slots, gradient, step, found.learning_rate(step))
        own.apply([gradient], [variable])
    np.testing.assert_allclose(rows, variable.value, rtol=1e-6, atol=1e-7)


def test_none_stands_for_adam():
    assert row_optimizer(None).name == "Adam"


def test_the_learning_rate_may_change():
    own = keras.optimizers.SGD(0.1)
    found = row_optimizer(own)
    own.learning_rate = 0.5
    assert float(found.learning_rate(jnp.asarray(1))) == 0.5


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "SGD with momentum=0.9"),
        (lambda: keras.optimizers.Adam(0.1, clipnorm=1.0), "Adam with clipnorm=1.0"),
        (lambda: keras.optimizers.Adam(0.1, weight_decay=0.1), "Adam with weight_decay=0.1"),
        (lambda: "rmsprop", "got RMSprop"),
    ],
)
def test_what_would_touch_other_rows_is_refused(optimizer, said: str):
    with pytest.raises(rx.errors.ArgumentError, match=said):
        row_optimizer(optimizer())
