"""One worker of the jobs that `elastic.py` times.

    elastic_worker.py FOLDER NAME BLOCK_STEPS

With a number of steps it waits for its turn (the file `turn` names a job and a block), makes some steps and then as
many, and writes how long one took. With 0 it makes steps until the file `turn` says `end`, and writes when each was
completed.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.group.membership.launcher_news import elastic_range

BATCH, WIDTH = 240, 1024
_POLL_S, _WARM_STEPS = 0.005, 4


class Training:
    """Two layers, gradient descent, and batches without an end.

    Args:
        strategy: Where.
    """

    def __init__(self, strategy: Any):
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
        with strategy.scope():
            self.weights = [
                rx.Variable(rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 32, name=f"w{i}") for i in range(2)
            ]
            self.step = rx.Variable(0, name="step")
        self.dataset = strategy.distribute_dataset(self._batches)
        self.checkpoint = rx.Checkpoint({"w": self.weights, "step": self.step, "data": self.dataset})
        self.train = rx.function(lambda batch: strategy.run(self._train, args=(batch,)))

    def _batches(self) -> Iterator[Any]:
        return itertools.repeat(self.x)

    def _train(self, x: Any) -> None:
        def loss_fn() -> Any:
            out = jnp.tanh(x @ self.weights[0].value) @ self.weights[1].value
            return rx.compute_average_loss(jnp.mean((out - x) ** 2, axis=-1), global_batch_size=BATCH)

        _, gradients = rx.value_and_grad(loss_fn, self.weights)()
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        self.step.assign_add(1)


def turn(folder: Path) -> tuple[str, int]:
    """Returns the name of the job whose turn it is, and the number of the block."""
    try:
        name, number = (folder / "turn").read_text().split()
    except (OSError, ValueError):
        return "", -1
    return name, int(number)


def in_turns(training: Training, folder: Path, name: str, steps: int, writes: bool) -> None:
    """Makes blocks of steps when it is told to."""
    done, batches = -1, iter(training.dataset)
    while True:
        whose, number = turn(folder)
        if whose == "end":
            return
        if whose != name or number <= done:
            time.sleep(_POLL_S)
            continue
        for _ in range(_WARM_STEPS):
            training.train(next(batches))
        training.step.numpy()
        began = time.perf_counter()
        for _ in range(steps):
            training.train(next(batches))
        training.step.numpy()  # Without elasticity nothing has waited until here.
        seconds = (time.perf_counter() - began) / steps
        done = number
        if writes:
            unfinished = folder / f"{name}-{number}.new"
            unfinished.write_text(json.dumps(seconds))
            unfinished.rename(folder / f"{name}-{number}.json")


def without_pause(training: Training, folder: Path) -> None:
    """Makes steps, and notes the time of each."""
    life = os.environ.get("REPLICAX_LIFE", "0")
    with open(folder / f"steps-{os.getpid()}-{life}.jsonl", "a", buffering=1) as file:
        for batch in training.dataset:
            training.train(batch)
            file.write(f"{json.dumps([int(training.step.numpy()), time.time()])}\n")
            if turn(folder)[0] == "end":
                return


def main(folder: Path, name: str, steps: int) -> None:
    elastic = elastic_range()
    whole = None if elastic is None else rx.Elastic(min_workers=elastic.fewest, max_workers=elastic.most)
    strategy = rx.MultiWorkerMirroredStrategy(**({} if whole is None else {"elastic": whole}))
    training = Training(strategy)
    if whole is not None:
        strategy.join(training.checkpoint)
    if steps:
        in_turns(training, folder, name, steps, strategy.worker_index == 0)
    else:
        without_pause(training, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
