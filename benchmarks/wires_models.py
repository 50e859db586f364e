"""What every variant of `wires.py` trains: first weights and batches in NumPy, the same for all."""

from __future__ import annotations

import itertools

import numpy as np

MODELS = {"33M": (2048,) * 9, "mlp": (784, 700, 500, 10)}
ROWS = 132  # of a global batch, for two, three or four hosts: raw JAX deals none that does not divide
BATCHES = 4  # which come in turn
EVERY = 50  # steps of a round of DiLoCo
LEARNING_RATE, EPSILON = 1e-3, 1e-7


def first_weights(sizes: tuple[int, ...]) -> list[dict[str, np.ndarray]]:
    """Returns for each dense layer `w`, shape `(inputs, outputs)`, and `b`, zeros; float32."""
    rng = np.random.default_rng(0)
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        w = rng.standard_normal((inputs, outputs), np.float32) * np.float32(np.sqrt(2.0 / inputs))
        layers.append({"w": w, "b": np.zeros(outputs, np.float32)})
    return layers


def batches(sizes: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the global batches: inputs `(ROWS, features)` and labels `(ROWS,)`."""
    rng = np.random.default_rng(1)
    return [
        (rng.random((ROWS, sizes[0]), np.float32), rng.integers(0, sizes[-1], ROWS).astype(np.int32))
        for _ in range(BATCHES)
    ]


def rows_of(array: np.ndarray, rank: int, world: int) -> np.ndarray:
    """Returns a host's rows of a global batch; hosts of unequal share get one row more or less."""
    return np.array_split(array, world)[rank]


def gradient_bytes(sizes: tuple[int, ...]) -> int:
    """Returns the bytes of all gradients, float32."""
    return 4 * sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(sizes))
