"""What `hostile.py` attacks: a worker that trains a linear model with known numbers, in step with the others."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import replicax as rx

ROWS, FEATURES, RATE = 8, 3, 0.1
SECONDS_TO_WAIT = 110.0  # less than its `stall_timeout`


def data() -> tuple[np.ndarray, np.ndarray]:
    """Returns the batch that every step uses."""
    x = np.arange(ROWS * FEATURES, dtype=np.float32).reshape(ROWS, FEATURES) / (ROWS * FEATURES)
    return x, x.sum(1)


def wait_for(file: Path) -> None:
    """Waits until the attack is over, so that half of the training comes after it."""
    deadline = time.monotonic() + SECONDS_TO_WAIT
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} did not come within {SECONDS_TO_WAIT:.0f} s")
        time.sleep(0.05)


def main(steps: int, pause_s: float, attacked: Path) -> None:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=300, stall_timeout=120)
    with strategy.scope():
        weights = rx.Variable(jnp.zeros(FEATURES), name="weights")

    def step(batch):
        x, y = batch

        def loss():
            return rx.compute_average_loss((x @ weights.value - y) ** 2, global_batch_size=ROWS)

        _, (gradient,) = rx.value_and_grad(loss, [weights])()
        weights.assign_sub(RATE * gradient)

    for number in range(steps):
        if number == steps // 2:
            wait_for(attacked)
        (batch,) = strategy.distribute_dataset(data(), batch_size=ROWS)
        strategy.run(step, args=(batch,))
        time.sleep(pause_s)
    print("WEIGHTS", *weights.numpy().tolist(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
