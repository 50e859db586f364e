"""Keras variables of a strategy have memory of their own: their user may change the arrays that they were given."""

import keras
import numpy as np

import replicax as rx

SIZE = 100_000


def aligned() -> np.ndarray:
    """Returns an array in whose memory XLA would go on: it begins at a multiple of 64 bytes."""
    memory = np.zeros(4 * SIZE + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + 4 * SIZE].view(np.float32)
    array[:] = 7.0
    return array


def test_first_values_assigned_ones_and_weights_are_copied():
    with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        first, assigned, weights = aligned(), aligned(), aligned()
        made, other = keras.Variable(first), keras.Variable(np.zeros(SIZE, np.float32))
        other.assign(assigned)
        layer = keras.layers.Dense(SIZE // 4, use_bias=False)
        layer.build((None, 4))
        layer.set_weights([weights.reshape(4, -1)])
    for array in (first, assigned, weights):
        array[:] = 0.0
    for variable in (made, other, layer.kernel):
        assert float(np.asarray(variable.value).min()) == 7.0
