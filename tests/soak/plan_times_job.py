"""Trains a network of dense layers in a given way, and notes how long its steps take (`plan_times.py`).

Usage: plan_times_job.py FILE CASE VARIATION, of which the last two are JSON
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import jax
import keras
import numpy as np

import replicax as rx
from replicax.planning.variations import Variation

_FIRST = 3  # steps that are not counted: they compile, and fill caches


def train(rows: int, width: int, layers: int, steps: int) -> list[float]:
    """Trains in the scope of the current strategy; returns the seconds of each step."""
    strategy: Any = rx.get_strategy()
    hidden = [keras.layers.Dense(width, "relu") for _ in range(layers)]
    model = keras.Sequential([keras.Input([width]), *hidden, keras.layers.Dense(16)])
    optimizer = keras.optimizers.SGD(1e-3)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(x: Any, y: Any) -> Any:
        def loss(x: Any, y: Any) -> Any:
            return rx.compute_average_loss(loss_of(y, model(x, training=True)), global_batch_size=rows)

        value, gradients = rx.value_and_grad(loss, model.trainable_variables)(x, y)
        optimizer.apply(gradients, model.trainable_variables)
        return value

    random = np.random.default_rng(0)
    batch = random.normal(size=[rows, width]).astype("float32"), random.integers(0, 16, rows).astype("int32")
    (on_devices,) = strategy.distribute_dataset([batch])
    seconds = []
    for _ in range(_FIRST + steps):
        begin = time.perf_counter()
        strategy.run(step, on_devices)
        jax.block_until_ready([each.value for each in model.trainable_variables])
        seconds.append(time.perf_counter() - begin)
    return seconds[_FIRST:]


def main(path: str, case: str, variation: str) -> None:
    with Variation(**json.loads(variation)).make().scope():
        seconds = train(**json.loads(case))
    if jax.process_index() == 0:
        Path(path).write_text(json.dumps(statistics.median(seconds)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
