"""The training that `elastic.py` disturbs: its data, its model, and a log of the rows that each call has computed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS, BATCH, WIDTH = 1200, 24, 8
STEPS_PER_PASS = ROWS // BATCH
_SEED = 1234


def data() -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs and targets of all rows."""
    rng = np.random.default_rng(_SEED)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    return x, 1.0 + np.tanh(x @ rng.normal(size=(WIDTH, 2))).astype(np.float32)


def order_of(number: int) -> np.ndarray:
    """Returns the ids of the rows in the order of a pass: each pass is shuffled anew."""
    return np.random.default_rng([_SEED, number]).permutation(ROWS).astype(np.int32)


def rows_of(step: int, fit: bool = False) -> list[int]:
    """Returns the ids of the rows of a step, from 0.

    Args:
        step: Its number.
        fit: Whether each epoch has the rows of the first pass, as in the job with `fit`.
    """
    number, within = divmod(step, STEPS_PER_PASS)
    return order_of(0 if fit else number)[within * BATCH : (within + 1) * BATCH].tolist()


def counts_after(steps: int, fit: bool = False) -> np.ndarray:
    """Returns how often each row has counted after so many steps; with `fit`, in the last epoch."""
    before = max(steps - 1, 0) // STEPS_PER_PASS if fit else steps // STEPS_PER_PASS
    counts = np.full(ROWS, 0 if fit else before)
    for step in range(before * STEPS_PER_PASS, steps):
        counts[rows_of(step, fit)] += 1
    return counts


def batches(number: int) -> Iterator[Any]:
    """Yields the global batches of a pass: inputs, targets, ids."""
    x, y = data()
    order = order_of(number)
    for start in range(0, ROWS, BATCH):
        ids = order[start : start + BATCH]
        yield x[ids], y[ids], ids


def batches_for_fit() -> Iterator[Any]:
    """Yields the global batches of an epoch of `fit`: inputs, and targets whose last column is the row's id.

    Their rows are those of the first pass of all, in each epoch: `fit` does not tell the number of the epoch.
    """
    for x, y, ids in batches(0):
        yield x, np.concatenate([y, ids[:, None].astype(np.float32)], axis=1)


def make_model() -> Any:
    """Returns the model: random features that stay, Dropout, and a layer that is trained.

    Its loss is convex and its weights decay, so that differences of rounding fade instead of growing over thousands of
    steps: what is lost or counted twice shows, the order of a sum does not.
    """
    import keras

    keras.utils.set_random_seed(_SEED)
    decay = keras.regularizers.L2(0.02)
    return keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(16, activation="tanh", trainable=False),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(2, kernel_regularizer=decay, bias_regularizer=decay),
        ]
    )


def own_size() -> dict[str, int]:
    """Returns the number of threads of this process, and its memory in MiB."""
    status = Path("/proc/self/status").read_text()
    found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {"threads": int(found["Threads"]), "memory_mib": int(found["VmRSS"].split()[0]) // 1024}


class RowLog:
    """What a worker tells of the steps that it has completed, a line each, in a file of its own.

    Args:
        folder: Where the file is.
        worker: The worker's index.
    """

    def __init__(self, folder: Path, worker: int):
        incarnation = int(os.environ.get("REPLICAX_LIFE", "0"))
        self._run = [worker, incarnation, os.getpid()]
        self._path = folder / f"rows-{worker}-{incarnation}.jsonl"

    def write(self, step: int, world: int, members: Sequence[int], own: Sequence[int], rows: Sequence[int]) -> None:
        """Tells of a step.

        Args:
            step: Its number, from 0.
            world: The number of the world in which it was completed.
            members: The workers of that world.
            own: The ids of the rows that this worker has computed; none if it does not know.
            rows: The ids of the rows that all have computed together.
        """
        line = {"time": time.time(), "run": self._run, "step": step, "world": world}
        line |= own_size()
        text = json.dumps({**line, "members": [*members], "own": [*own], "rows": [*rows]})
        with self._path.open("a") as file:
            file.write(f"{text}\n")


def last_step(folder: Path) -> int | None:
    """Returns the number of steps after which the job ends; None while nobody has told."""
    target = folder / "target"
    return int(target.read_text()) if target.exists() else None


def end_after(folder: Path, steps: int) -> None:
    """Tells the job after how many steps it ends. It must be told long before the first worker comes there."""
    unfinished = folder / "target.new"
    unfinished.write_text(str(steps))
    unfinished.rename(folder / "target")


def keep_result(path: Path, parameters: Sequence[Any], slots: Sequence[Any], counts: Any, steps: int) -> None:
    """Writes the end of a training: the model's variables, the optimizer's, how often each row counted, and the steps.

    The differences of the optimizer's variables are not compared: a slot sums gradients whose own sums nearly vanish.
    """
    values = {f"parameter{number}": np.asarray(each) for number, each in enumerate(parameters)}
    values |= {f"slot{number}": np.asarray(each) for number, each in enumerate(slots)}
    unfinished = path.with_name(f"unfinished-{path.name}")
    np.savez(unfinished, counts=np.asarray(counts), steps=steps, **values)
    unfinished.rename(path)
