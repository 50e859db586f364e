"""Strikes workers and servers of an asynchronous training, again and again, and sees whether anything is lost.

    python tests/soak/ps_chaos.py --faults 20 [--seed 0]

Faults: SIGKILL and SIGSTOP to a random worker or server. Each step that was scheduled must have a result in the end,
the optimizer must have counted each update once (since the newest checkpoint, where a server was lost), the training
must reach its accuracy, and no process may be left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import tempfile
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from sklearn.datasets import load_digits

import replicax as rx

WORKERS, SERVERS, BATCH = 3, 2, 32
STALL_TIMEOUT_S = 4.0
LONGEST_WAIT_S = 180.0  # for all steps of a round: then it hangs
ACCURACY = 0.95


def digits():
    """Returns images and labels to train on, and others to test with."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype("float32"), labels[order].astype("int32")
    return (images[:1500], labels[:1500]), (images[1500:], labels[1500:])


def batches():
    """What each worker trains on: batches without end, others than those of the others."""
    (images, labels), _ = digits()
    rng = np.random.default_rng(rx.coordinator.get_current_worker_index())
    while True:
        rows = rng.integers(0, len(labels), BATCH)
        yield images[rows], labels[rows]


class Training:
    """A training under a parameter server strategy, with checkpoints.

    Args:
        folder: Where the checkpoints go.
    """

    def __init__(self, folder: str):
        self.strategy = rx.ParameterServerStrategy(
            workers=WORKERS, servers=SERVERS, stall_timeout=STALL_TIMEOUT_S, dashboard=False
        )
        with self.strategy.scope():
            self.model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(10)])
            self.optimizer = keras.optimizers.Adam(3e-3)
            self.optimizer.build(self.model.trainable_variables)
        objects = {"model": self.model, "optimizer": self.optimizer}
        self.manager = rx.CheckpointManager(folder, max_to_keep=2, objects=objects)
        self.coordinator = rx.coordinator.ClusterCoordinator(self.strategy, checkpoint_manager=self.manager)
        self.iterator = iter(self.coordinator.create_per_worker_dataset(batches))
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @rx.function
        def step(iterator):
            x, y = next(iterator)
            variables = self.model.trainable_variables
            loss, gradients = rx.value_and_grad(lambda: loss_of(y, self.model(x, training=True)), variables)()
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        self.step = step

    def schedule(self, steps: int):
        """Schedules steps and returns what will be their results."""
        return [self.coordinator.schedule(self.step, args=(self.iterator,)) for _ in range(steps)]

    def save(self, number: int) -> int:
        """Writes a checkpoint; returns how many updates it has."""
        self.manager.save(number)
        self.manager.wait_until_finished()
        return int(self.optimizer.iterations)

    def accuracy(self) -> float:
        """Returns the accuracy on what it was not trained on."""
        x, y = digits()[1]
        return float(np.mean(np.argmax(self.model.predict_on_batch(x), axis=-1) == y))


def strike(training: Training, rng: random.Random, wanted: str) -> str:
    """Kills or stops a worker or server, any or as `"job:signal"` says; returns which."""
    job, _, how = wanted.partition(":")
    name, pid = rng.choice([p for p in sorted(training.coordinator.processes().items()) if p[0].startswith(job)])
    number = signal.Signals[how] if how else rng.choice([signal.SIGKILL, signal.SIGSTOP])
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return f"{number.name} to {name}"


def run(faults: int, seed: int, steps: int, strikes: list[str]) -> dict[str, float]:
    """Trains under faults; returns the figures."""
    rng = random.Random(seed)
    found = {"ps_steps_lost": 0, "ps_faults_survived": 0, "ps_updates_miscounted": 0}
    with tempfile.TemporaryDirectory() as folder:
        training = Training(folder)
        for value in training.schedule(steps):
            value.fetch(LONGEST_WAIT_S)
        training.coordinator.join(LONGEST_WAIT_S)
        for fault in range(faults):
            saved = training.save(fault)
            servers_lost = training.coordinator.stats().server_restarts
            results = training.schedule(steps)
            time.sleep(rng.uniform(0, 0.3))
            begin, what = time.monotonic(), strike(training, rng, strikes[fault % len(strikes)])
            training.coordinator.join(LONGEST_WAIT_S)
            lost = sum(not (value.is_ready and np.isfinite(value.fetch(1))) for value in results)
            found["ps_steps_lost"] += lost
            found["ps_faults_survived"] += lost == 0
            updates = int(training.optimizer.iterations) - saved
            rolled_back = training.coordinator.stats().server_restarts > servers_lost
            wrong = not 0 <= updates <= steps if rolled_back else updates != steps
            found["ps_updates_miscounted"] += wrong
            print(f"{fault + 1:3d}. {what}: {time.monotonic() - begin:.1f} s, {updates} updates", flush=True)
        found["ps_accuracy"] = training.accuracy()
        processes = list(training.coordinator.processes().values())
        training.strategy.close()
    found["processes_left"] = count_left(processes)
    return found


def count_left(pids: list[int]) -> int:
    """Returns how many of these processes, and of Ray's own below this one, are there after a few seconds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (left := [*filter(is_alive, pids), *ray_children()]):
        time.sleep(0.2)
    return len(set(left))


def is_alive(pid: int) -> bool:
    """Returns whether a process is there and is no zombie."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def ray_children() -> list[int]:
    """Returns the children of this process that still run."""
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return [pid for pid in map(int, children.read().split()) if is_alive(pid)]


def main() -> None:
    """Prints a line for each fault and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60, help="steps that are under way when a fault comes")
    parser.add_argument(
        "--strike", default="", help="the faults, for example worker:SIGKILL,ps:SIGSTOP; any by default"
    )
    options = parser.parse_args()
    for name, value in run(options.faults, options.seed, options.steps, options.strike.split(",")).items():
        print(f"RESULT {name} {value:g}")


if __name__ == "__main__":
    main()
