"""Times steps of `fit`, plain and with `numbers="bitwise"`: prints for each model both in milliseconds and their ratio.

BITWISE_DEVICES=8 python tests/soak/bitwise_times.py
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np

import replicax as rx

ROWS, ROUNDS, STEPS = 128, 5, 4
layers = keras.layers


def _transformer() -> Any:
    inputs = x = keras.Input((32, 64))
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, 16)(y, y)
        x = x + layers.Dense(64)(layers.Dense(256, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def _convolutional() -> Any:
    inputs = x = keras.Input((32, 32, 3))
    for width in (32, 64):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))


def _steps(strategy: rx.Strategy, make: Callable[[], Any]) -> Callable[[], float]:
    """Returns what times some steps, and how long one has taken, in seconds."""
    with strategy.scope():
        model = make()
        model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(ROWS, *model.inputs[0].shape[1:])).astype(np.float32)
    y = numbers.integers(0, 10, ROWS)

    def timed() -> float:
        begin = time.perf_counter()
        for _ in range(STEPS):
            model.train_on_batch(x, y)
        jax.block_until_ready([variable.value for variable in model.trainable_variables])
        return (time.perf_counter() - begin) / STEPS

    timed()
    return timed


def main() -> None:
    """Times the models, plain and bitwise steps in turn."""
    for name, make in (("transformer", _transformer), ("convolutional", _convolutional)):
        bitwise = _steps(rx.MirroredStrategy(numbers="bitwise"), make)
        plain = _steps(rx.MirroredStrategy(), make)
        pairs = [(plain(), bitwise()) for _ in range(ROUNDS)]
        fast, slow = (min(each) * 1e3 for each in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"{name}: plain {fast:.1f} ms, bitwise {slow:.1f} ms, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", int(os.environ.get("BITWISE_DEVICES", "1")))
    main()
