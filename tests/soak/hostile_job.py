"""What `hostile.py` attacks: a worker that trains a linear model with known numbers, in step with the others.

    hostile_job.py KIND FOLDER PAUSE_S

It says `IN` when its strategy is there, `STEP n` as it goes on, and at last its weights. It ends after the step that
the file `target` in the folder names, which is written when the attack is over.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import replicax as rx

ROWS, FEATURES, RATE = 8, 3, 0.1
START_TIMEOUT_S, STALL_TIMEOUT_S = 300.0, 120.0
ROUND = 5  # steps between two exchanges of islands
_MOST_STEPS = 20_000


def data() -> tuple[np.ndarray, np.ndarray]:
    """Returns the batch that every step uses."""
    x = np.arange(ROWS * FEATURES, dtype=np.float32).reshape(ROWS, FEATURES) / (ROWS * FEATURES)
    return x, x.sum(1)


def expected(steps: int) -> np.ndarray:
    """Returns the weights after some steps."""
    x, y = (part.astype(np.float64) for part in data())
    weights = np.zeros(x.shape[1])
    for _ in range(steps):
        weights -= RATE * 2 * x.T @ (x @ weights - y) / ROWS
    return weights


def last_step(folder: Path) -> int:
    """Returns the step after which to end; a far one as long as nobody has named any."""
    try:
        return int((folder / "target").read_text())
    except (OSError, ValueError):
        return _MOST_STEPS


def train(make: Callable[[], Any], folder: Path, pause_s: float, joins: bool = False) -> list[float]:
    """Trains as one of the workers, and returns the weights."""
    strategy = make()
    print("IN", flush=True)
    with strategy.scope():
        weights = rx.Variable(jnp.zeros(FEATURES), name="weights")
        number = rx.Variable(0, name="number")
    checkpoint = rx.Checkpoint({"weights": weights, "number": number})

    def step(batch: Any) -> None:
        x, y = batch

        def loss() -> Any:
            return rx.compute_average_loss((x @ weights.value - y) ** 2, global_batch_size=ROWS)

        _, (gradient,) = rx.value_and_grad(loss, [weights])()
        weights.assign_sub(RATE * gradient)
        number.assign_add(1)

    if joins:
        strategy.join(checkpoint)
    done = int(number.numpy())
    # Islands are dealt whole batches.
    batches = strategy.distribute_dataset(lambda: (data() for _ in range(4 * _MOST_STEPS)))
    for batch in batches:
        strategy.run(step, args=(batch,))
        done = int(number.numpy())
        if done % 10 == 0:
            print("STEP", done, flush=True)
            if done >= last_step(folder):
                break
        if joins:
            strategy.join(checkpoint)
        time.sleep(pause_s)
    if joins:
        batches = None  # Its prefetch ends.
    print("WEIGHTS", done, *weights.numpy().tolist(), flush=True)
    return weights.numpy().tolist()


def exchanging(make: Callable[[], Any], folder: Path, pause_s: float) -> None:
    """Trains, and then exchanges Python objects with the others."""
    strategy = make()
    train(lambda: strategy, folder, pause_s)
    told = strategy.remote_all(lambda: {"worker": strategy.worker_index})
    assert [each["worker"] for each in told] == [*range(strategy.num_workers)], told


def in_step() -> Any:
    return rx.MultiWorkerMirroredStrategy(start_timeout=START_TIMEOUT_S, stall_timeout=STALL_TIMEOUT_S)


def coming_and_going() -> Any:
    return rx.MultiWorkerMirroredStrategy(
        elastic=rx.Elastic(min_workers=1, max_workers=3), start_timeout=START_TIMEOUT_S, stall_timeout=STALL_TIMEOUT_S
    )


def island() -> Any:
    return rx.LocalSGDStrategy(every=ROUND, start_timeout=START_TIMEOUT_S, stall_timeout=STALL_TIMEOUT_S)


def of_servers(folder: Path, pause_s: float) -> None:
    """Lets the workers be on servers."""
    servers = json.loads((folder / "servers.json").read_text())
    strategy = rx.MultiWorkerMirroredStrategy(remote_cluster=servers, start_timeout=START_TIMEOUT_S)
    strategy.remote_all(train, in_step, folder, pause_s)
    strategy.close()


def with_parameter_servers(folder: Path, pause_s: float) -> None:
    """Lets workers add to a variable on a parameter server: each update must count once."""
    strategy = rx.ParameterServerStrategy(dashboard=False, start_timeout=START_TIMEOUT_S)
    print("IN", flush=True)
    with strategy.scope():
        count = rx.Variable(0, name="count")
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    done = 0
    while done < last_step(folder):
        for _ in range(10):
            coordinator.schedule(functools.partial(strategy.run, lambda: count.assign_add(1)))
        coordinator.join()
        done += 10
        print("STEP", done, flush=True)
        time.sleep(pause_s)
    print("COUNTED", done, int(count.numpy()), flush=True)


def main(kind: str, folder: Path, pause_s: float) -> None:
    if kind == "fixed":
        exchanging(in_step, folder, pause_s)
    elif kind == "elastic":
        train(coming_and_going, folder, pause_s, joins=True)
    elif kind == "islands":
        train(island, folder, pause_s)
    elif kind == "servers":
        of_servers(folder, pause_s)
    elif kind == "notebook":
        rx.notebook.launch(train, (in_step, folder, pause_s), workers=2)
    else:
        with_parameter_servers(folder, pause_s)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # `hostile.py` asks a process that does not end where it is.
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
