"""The job that `chaos.py` strikes: a small training on several workers that saves, and can be restarted at any step.

    chaos_job.py FOLDER STEPS

Each worker tells the folder who it is (`worker-0.pid`) and how far it is (`worker-0.step`); a file `worker-0.fault` in
it makes the worker block in its input or sleep in a callback.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.runtime import activity

ROWS, BATCH, SAVE_EVERY = 240, 12, 5
FOR_EVER = 10_000.0


def fault(folder: Path, worker: int, kind: str) -> None:
    """Blocks if this worker has been told to, once."""
    order = folder / f"worker-{worker}.fault"
    if order.exists() and order.read_text() == kind:
        order.unlink()
        time.sleep(FOR_EVER)


def tell(folder: Path, name: str, text: str) -> None:
    """Writes a file so that nobody sees half of it."""
    unfinished = folder / f"{name}.{os.getpid()}"
    unfinished.write_text(text)
    os.replace(unfinished, folder / name)


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 8)).astype(np.float32)
    return x, np.tanh(x @ rng.normal(size=(8, 2))).astype(np.float32)


class Training:
    """Variables, a step, and a dataset whose position is saved with them."""

    def __init__(self, strategy: Any, folder: Path):
        self.strategy, self.folder = strategy, folder
        with strategy.scope():
            self.w = rx.Variable(np.full((8, 2), 0.1, np.float32), name="w")
            self.momentum = rx.Variable(np.zeros((8, 2), np.float32), name="momentum")
            self.step = rx.Variable(0, name="step")
        self.dataset = strategy.distribute_dataset(self.batches, rx.InputOptions(prefetch=1))
        self.train = rx.function(lambda batch: strategy.run(self.train_step, args=(batch,)))

    def batches(self) -> Iterator[Any]:
        x, y = rows()
        for start in range(0, ROWS, BATCH):
            fault(self.folder, self.strategy.worker_index, "input")
            yield x[start : start + BATCH], y[start : start + BATCH]

    def train_step(self, batch: Any) -> None:
        x, y = batch

        def loss_fn() -> Any:
            losses = jnp.sum((jnp.tanh(x @ self.w.value) - y) ** 2, axis=-1)
            return rx.compute_average_loss(losses, global_batch_size=BATCH)

        _, gradients = rx.value_and_grad(loss_fn, [self.w])()
        self.momentum.assign(0.9 * self.momentum + gradients[0])
        self.w.assign_sub(0.05 * self.momentum)
        self.step.assign_add(1)


def callback(folder: Path, worker: int) -> None:
    """What a user does between steps."""
    with activity.phase("callback"):
        fault(folder, worker, "callback")


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=120)
    worker = strategy.worker_index
    training = Training(strategy, folder)
    manager = rx.CheckpointManager(
        folder / "checkpoints",
        save_interval_steps=SAVE_EVERY,
        objects={"w": training.w, "momentum": training.momentum, "step": training.step, "data": training.dataset},
    )
    with manager, rx.PreemptionCheckpointHandler(strategy, manager) as handler:
        done = int(training.step.numpy())
        tell(folder, f"worker-{worker}.pid", json.dumps({"pid": os.getpid(), "from": done}))
        while done < steps:
            for batch in training.dataset:
                training.train(batch)
                done += 1
                callback(folder, worker)
                manager.save(done)
                tell(folder, f"worker-{worker}.step", str(done))
                # Here the step and the position in the data agree. `handler.run` would save before the step, when its
                # batch has been taken already.
                handler.save_checkpoint_if_preempted(done)
                time.sleep(0.02)
                if done == steps:
                    break
    if strategy.is_chief:
        final = np.asarray(jax.device_get(training.w.numpy()))
        tell(folder, "final.json", json.dumps({"w": final.astype(np.float64).tolist(), "steps": done}))


if __name__ == "__main__":
    main()
