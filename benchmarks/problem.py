"""The problem that the benchmarks train on, in NumPy alone, so that every peer's interpreter can import it.

A multi-layer perceptron 784-700-500-10, cross entropy on integer labels, a global batch of 128, Adam at 1e-3.
"""

from __future__ import annotations

import itertools

import numpy as np

SIZES = (784, 700, 500, 10)
ROWS = 128
LEARNING_RATE, EPSILON = 1e-3, 1e-7


def init_params(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Returns Glorot-uniform weights of shape `(inputs, outputs)` and zero biases, float32, on the host."""
    rng = np.random.default_rng(seed)
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        limit = np.sqrt(6.0 / (inputs + outputs))
        w = rng.uniform(-limit, limit, (inputs, outputs)).astype(np.float32)
        layers.append({"w": w, "b": np.zeros(outputs, np.float32)})
    return layers


def make_batch(rows: int, features: int = SIZES[0], classes: int = SIZES[-1]) -> tuple[np.ndarray, np.ndarray]:
    """Returns random inputs and labels; speed does not depend on what they say."""
    rng = np.random.default_rng(1)
    return rng.random((rows, features), np.float32), rng.integers(0, classes, rows).astype(np.int32)


def flat_weights(sizes: tuple[int, ...] = SIZES) -> list[np.ndarray]:
    """Returns the first weights in the order of `keras.Model.set_weights`: kernel and bias of each layer."""
    return [array for layer in init_params(sizes) for array in (layer["w"], layer["b"])]
