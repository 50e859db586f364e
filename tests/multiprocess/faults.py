"""A job without Keras in which something goes wrong: `faults.py FAULT FOLDER`, a worker of it.

Each worker tells the folder that it has come to the fault (`worker-0.there`).
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import replicax as rx

FOR_EVER = 1000.0


class Job:
    """A variable, a step, and what the faults need."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.strategy = rx.MultiWorkerMirroredStrategy(start_timeout=120)
        self.worker = self.strategy.worker_index
        with self.strategy.scope():
            self.w = rx.Variable(np.zeros(4, np.float32), name="w")
        self.step = rx.function(lambda x: self.strategy.run(self._add, args=(x,)))
        self.value = self.strategy.distribute_values_from_function(lambda _: np.ones(4, np.float32))

    def _add(self, x: Any) -> Any:
        self.w.assign_add(rx.get_replica_context().all_reduce("sum", x))
        return x

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step(self.value)

    def there(self) -> None:
        (self.folder / f"worker-{self.worker}.there").write_text(json.dumps(os.getpid()))


def nothing(job: Job) -> None:
    """Trains to the end."""


def sigterm(job: Job) -> None:
    """Trains until it is told to go."""
    job.there()
    while True:
        job.train(1)
        time.sleep(0.02)


def preempted(job: Job) -> None:
    """The same with a handler that saves."""
    with rx.PreemptionCheckpointHandler(job.strategy, rx.Checkpoint({"w": job.w}), job.folder / "saved") as handler:
        job.there()
        while True:
            handler.run(job.train, 1)
            time.sleep(0.02)


def at_exit(job: Job) -> None:
    """Is on the way out: in a handler that comes before all others."""
    if job.worker == 1:
        atexit.register(time.sleep, 5.0)
        atexit.register(job.there)


def left(job: Job) -> None:
    """Worker 1 takes its time at the end; the others wait to leave with it."""
    if job.worker == 1:
        job.there()
        time.sleep(FOR_EVER)


def fails(job: Job) -> None:
    """Worker 1 makes a mistake."""
    if job.worker == 1:
        raise RuntimeError("the user's own")
    job.train(1)


def differs(job: Job) -> None:
    """Worker 1 runs another program."""
    scale = 1.0 + job.worker
    other = rx.function(lambda x: job.strategy.run(lambda x: scale * x, args=(x,)))
    other(job.value)


def chief_reduces(job: Job) -> None:
    """Only the chief calls what all must."""
    if job.strategy.is_chief:
        job.there()
        print(float(job.strategy.reduce("sum", job.value).sum()))
    else:
        time.sleep(FOR_EVER)


def chief_makes_a_variable(job: Job) -> None:
    if job.strategy.is_chief:
        job.there()
        with job.strategy.scope():
            rx.Variable(np.zeros(3, np.float32))
    else:
        time.sleep(FOR_EVER)


def chief_saves(job: Job) -> None:
    if job.strategy.is_chief:
        job.there()
        rx.Checkpoint({"w": job.w}).write(job.folder / "chiefs")
    else:
        time.sleep(FOR_EVER)


def chief_saves_as_others_end(job: Job) -> None:
    if job.strategy.is_chief:
        job.there()
        rx.CheckpointManager(job.folder / "chiefs", objects={"w": job.w}).save(1)


def chief_saves_in_the_background(job: Job) -> None:
    chief_saves_as_others_end(job)
    if not job.strategy.is_chief:
        time.sleep(FOR_EVER)


def chief_saves_while_others_train(job: Job) -> None:
    if job.strategy.is_chief:
        job.there()
        rx.Checkpoint({"w": job.w}).write(job.folder / "chiefs")
    job.train(1000)


def chief_evaluates(job: Job) -> None:
    import keras

    with job.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)
    model.fit(x, y, verbose=0)
    if job.strategy.is_chief:
        job.there()
        model.evaluate(x, y, verbose=0)


def first_chief_reduces(job: Job) -> None:
    """Only the chief calls what all must, and no step has run before."""
    if job.strategy.is_chief:
        job.strategy.reduce("sum", job.value, axis=None)
    job.train(1)


def first_chief_saves_weights(job: Job) -> None:
    import keras

    with job.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    if job.strategy.is_chief:
        model.save_weights(job.folder / "model.weights.h5")
    job.train(1)


def main() -> None:
    fault, folder = sys.argv[1], Path(sys.argv[2])
    job = Job(folder)
    if not fault.startswith("first_"):
        job.train(3)
    globals()[fault](job)
    job.train(0)
    print("finished", flush=True)


if __name__ == "__main__":
    main()
