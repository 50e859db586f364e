"""What `hostile.py` attacks: a worker that trains a linear model with known numbers, in step with the others."""

from __future__ import annotations

import sys
import time

import jax.numpy as jnp
import numpy as np

import replicax as rx

ROWS, FEATURES, RATE = 8, 3, 0.1


def data() -> tuple[np.ndarray, np.ndarray]:
    """Returns the batch that every step uses."""
    x = np.arange(ROWS * FEATURES, dtype=np.float32).reshape(ROWS, FEATURES) / (ROWS * FEATURES)
    return x, x.sum(1)


def main(steps: int, pause_s: float) -> None:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=300, stall_timeout=120)
    with strategy.scope():
        weights = rx.Variable(jnp.zeros(FEATURES), name="weights")

    def step(batch):
        x, y = batch

        def loss():
            return rx.compute_average_loss((x @ weights.value - y) ** 2, global_batch_size=ROWS)

        _, (gradient,) = rx.value_and_grad(loss, [weights])()
        weights.assign_sub(RATE * gradient)

    for _ in range(steps):
        (batch,) = strategy.distribute_dataset(data(), batch_size=ROWS)
        strategy.run(step, args=(batch,))
        time.sleep(pause_s)
    print("WEIGHTS", *weights.numpy().tolist(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
