"""`fit` on batches that do not divide, with operations that XLA's partitioner gets wrong where it pads rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

import replicax as rx

OPERATIONS = {
    "median of rows": lambda x: x - ops.median(x, axis=0),
    "sort of features": lambda x: ops.sort(x, axis=-1),
    "windows of rows": lambda x: ops.max_pool(x[None], 2, strides=1, padding="same")[0],
    "windows of features": lambda x: ops.max_pool(x[..., None], 2, strides=1, padding="same")[..., 0],
}


@keras.saving.register_keras_serializable("tests")
class Operation(keras.layers.Layer):
    def __init__(self, name):
        super().__init__()
        self._call = OPERATIONS[name]

    def call(self, x):
        return self._call(x)


def trained(name, rows, strategy=None):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(2 * rows, 5)).astype("float32")
    scope = strategy.scope() if strategy is not None else keras.name_scope("alone")
    with scope:
        model = keras.Sequential(
            [keras.Input((5,)), keras.layers.Dense(4, "tanh"), Operation(name), keras.layers.Dense(1)]
        )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, x.sum(1, keepdims=True), batch_size=rows, epochs=2, shuffle=False, verbose=0)
    return [*model.get_weights(), model.predict(x, batch_size=rows, verbose=0)]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("replicas", "rows"), [(3, 10), (8, 11)])
def test_the_numbers_are_those_of_one_device(name, replicas, rows):
    expected = trained(name, rows)
    found = trained(name, rows, rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)]))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-6, atol=2e-6)
