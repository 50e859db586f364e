"""Strikes workers and servers of an asynchronous training, again and again, and sees whether anything is lost.

    python tests/soak/ps_chaos.py --faults 40 --at-once 2 [--seed 0]

Faults: SIGKILL and SIGSTOP, for good or until a SIGCONT some seconds later, to random workers and servers, those that
are just starting among them; several at once, while steps are under way, while all are idle, while a worker is set up,
servers are recovered, a checkpoint is written, datasets are made, or a result is fetched. Each step that was scheduled
must have a result in the end, the optimizer must have counted each update once (since the newest checkpoint, where a
server was lost), a counter on another server must agree with it, the training must reach its accuracy, all must end in
time, and no process or semaphore may be left; otherwise the exit status is 1. Arrays travel through shared memory with
the default width (each server has over 100 KiB), in calls with `--width 64`. All that is done in a round depends on
`--seed` and its number alone, and is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from ps_processes import actors, children, count_left, named, semaphores, send
from sklearn.datasets import load_digits

import replicax as rx

WORKERS, SERVERS, BATCH = 3, 2, 32
STALL_TIMEOUT_S, START_TIMEOUT_S = 6.0, 60.0
DURING = ("steps", "idle", "set-up", "recovery", "checkpoint", "datasets", "fetch")
WIDE = 600  # From this width on each server has so much that it travels through shared memory.
LONGEST_WAIT_S = 300.0  # for all steps of a round: then it hangs. A recovery may try for 200 s, and once more then.
ACCURACY, MOST_LAST_STEPS = 0.95, 600  # without faults, after them


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
        width: How many units each hidden layer has.
    """

    def __init__(self, folder: str, width: int):
        self.strategy = rx.ParameterServerStrategy(
            workers=WORKERS,
            servers=SERVERS,
            stall_timeout=STALL_TIMEOUT_S,
            start_timeout=START_TIMEOUT_S,
            dashboard=False,
        )
        with self.strategy.scope():
            hidden = [keras.layers.Dense(width, "tanh") for _ in range(2)]
            self.model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])
            self.optimizer = keras.optimizers.Adam(3e-3)
            self.optimizer.build(self.model.trainable_variables)
            self.count = rx.Variable(0.0, name="count")
        objects = {"model": self.model, "optimizer": self.optimizer, "count": self.count}
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
            self.count.assign_add(1.0)
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

    def finish(self) -> float:
        """Trains on until the accuracy is reached, for some steps at most; returns it.

        No gradient is older than two updates there: with Adam and gradients of five updates ago the accuracy swings
        between 0.5 and 0.98 for a thousand steps, also in one process without any fault.
        """
        for number in range(MOST_LAST_STEPS // WORKERS):
            if number % 20 == 0 and self.accuracy() >= ACCURACY:
                break
            self.schedule(WORKERS)
            self.coordinator.join(LONGEST_WAIT_S)
        return self.accuracy()

    def accuracy(self) -> float:
        """Returns the accuracy on what it was not trained on."""
        x, y = digits()[1]
        return float(np.mean(np.argmax(self.model.predict_on_batch(x), axis=-1) == y))


@dataclasses.dataclass(frozen=True)
class Fault:
    """A signal to a process.

    Attributes:
        after_s: When it comes, counted from the beginning of the round.
        job: `"worker"` or `"ps"`.
        signal: Its name.
        continued_s: How long after it a SIGCONT follows; None for never.
        choice: Which of the processes of that job, as a part of 1.
    """

    after_s: float
    job: str
    signal: str
    continued_s: float | None
    choice: float

    def __str__(self) -> str:
        again = "" if self.continued_s is None else f" for {self.continued_s:.1f} s"
        return f"{self.signal} to a {self.job}{again} after {self.after_s:.1f} s"


@dataclasses.dataclass(frozen=True)
class Round:
    """What is done in a round.

    Attributes:
        during: What goes on when the faults come.
        faults: The faults.
    """

    during: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"during {self.during}: {', '.join(map(str, self.faults))}"


def plan(seed: int, number: int, at_once: int, wanted: list[str]) -> Round:
    """Returns what is done in a round; `wanted` says which faults, as `"job:signal"`, or `""` for any."""
    rng = random.Random(f"{seed} {number}")
    faults = []
    for i in range(at_once):
        job, _, how = wanted[(number * at_once + i) % len(wanted)].partition(":")
        how = how or rng.choice(["SIGKILL", "SIGSTOP", "SIGSTOP until"])
        until = rng.uniform(0.5, 2 * STALL_TIMEOUT_S) if how.endswith("until") else None
        job = job or rng.choice(["worker", "worker", "ps"])
        faults.append(Fault(rng.uniform(0, 2), job, how.split()[0], until, rng.random()))
    return Round(rng.choice(DURING), tuple(faults))


def strike(training: Training, fault: Fault) -> str:
    """Sends the signal to one of the processes there are, also of those that are just starting; returns to which."""
    title = "ray::RemoteWorker" if fault.job == "worker" else "ray::ParameterServer"
    there = sorted(
        {*actors(title), *(p for n, p in training.coordinator.processes().items() if n.startswith(fault.job))}
    )
    pid = there[int(fault.choice * len(there))] if there else None
    if pid is None:
        return f"no {fault.job} to strike"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.Signals[fault.signal])
    if fault.continued_s is not None:
        timer = threading.Timer(fault.continued_s, send, [pid, signal.SIGCONT])
        timer.daemon = True
        timer.start()
    return f"{fault.signal} to {fault.job} {pid}"


class Chaos:
    """Rounds of faults in a training.

    Args:
        training: The training.
        steps: How many steps are scheduled in a round.
    """

    def __init__(self, training: Training, steps: int):
        self.training, self._steps = training, steps
        self.lost = self.survived = self.miscounted = 0

    def round(self, number: int, round_: Round) -> None:
        """Does what a round says, and checks what came of it."""
        training = self.training
        saved = training.save(100 * number + 100)
        servers_lost = training.coordinator.stats().server_restarts
        begin = time.monotonic()
        struck: list[str] = []
        striker = threading.Thread(target=self._strike, args=(round_, struck), daemon=True)
        striker.start()
        results = self._activity(round_.during)(number)
        striker.join()
        results += training.schedule(self._steps - len(results))
        training.coordinator.join(LONGEST_WAIT_S)
        lost = sum(not (value.is_ready and np.isfinite(value.fetch(1))) for value in results)
        self.lost += lost
        self.survived += (lost == 0) * len(round_.faults)
        updates = int(training.optimizer.iterations) - saved
        rolled_back = training.coordinator.stats().server_restarts > servers_lost
        wrong = not 0 <= updates <= self._steps if rolled_back else updates != self._steps
        wrong |= int(training.count) != int(training.optimizer.iterations)
        self.miscounted += wrong
        counts = f"{updates} updates" + (f", counter {int(training.count) - saved}: WRONG" if wrong else "")
        print(
            f"{number + 1:3d}. {round_}: {time.monotonic() - begin:.1f} s, {counts} ({'; '.join(struck)})", flush=True
        )

    def _strike(self, round_: Round, struck: list[str]) -> None:
        begin = time.monotonic()
        for fault in sorted(round_.faults, key=lambda fault: fault.after_s):
            time.sleep(max(0.0, begin + fault.after_s - time.monotonic()))
            struck.append(strike(self.training, fault))

    def _activity(self, during: str) -> Callable[[int], list[Any]]:
        kinds = {
            "steps": self._during_steps,
            "idle": self._while_idle,
            "set-up": self._during_set_up,
            "recovery": self._during_recovery,
            "checkpoint": self._during_checkpoint,
            "datasets": self._during_datasets,
            "fetch": self._during_fetch,
        }
        return kinds[during]

    def _during_steps(self, number: int) -> list[Any]:
        return self.training.schedule(self._steps)

    def _while_idle(self, number: int) -> list[Any]:
        time.sleep(3)
        return []

    def _during_set_up(self, number: int) -> list[Any]:
        send(actors("ray::RemoteWorker")[0], signal.SIGKILL)
        time.sleep(2)
        return self.training.schedule(self._steps)

    def _during_recovery(self, number: int) -> list[Any]:
        send(actors("ray::ParameterServer")[0], signal.SIGKILL)
        return self.training.schedule(self._steps)

    def _during_checkpoint(self, number: int) -> list[Any]:
        results = self.training.schedule(self._steps)
        self.training.coordinator.join(LONGEST_WAIT_S)
        for i in range(1, 21):  # One takes a moment.
            self.training.manager.save(100 * number + 100 + i)
            self.training.manager.wait_until_finished()
            time.sleep(0.1)
        return results

    def _during_datasets(self, number: int) -> list[Any]:
        for _ in range(5):
            self.training.iterator = iter(self.training.coordinator.create_per_worker_dataset(batches))
            time.sleep(0.3)
        return self.training.schedule(self._steps)

    def _during_fetch(self, number: int) -> list[Any]:
        results = []
        for _ in range(self._steps):
            results += self.training.schedule(1)
            results[-1].fetch(LONGEST_WAIT_S)
        return results


def run(faults: int, at_once: int, seed: int, steps: int, strikes: list[str], width: int) -> dict[str, float]:
    """Trains under faults; returns the figures."""
    with tempfile.TemporaryDirectory() as folder:
        training = Training(folder, width)
        training.save(0)  # A busy machine may take a server for hung that compiles the first step.
        for value in training.schedule(steps):
            value.fetch(LONGEST_WAIT_S)
        training.coordinator.join(LONGEST_WAIT_S)
        chaos = Chaos(training, steps)
        for number in range(-(-faults // at_once)):
            chaos.round(number, plan(seed, number, min(at_once, faults - number * at_once), strikes))
        found: dict[str, float] = {
            "ps_steps_lost": chaos.lost,
            "ps_faults_survived": chaos.survived,
            "ps_updates_miscounted": chaos.miscounted,
            "ps_accuracy": training.finish(),
            "ps_restarts": training.coordinator.stats().server_restarts,
        }
        nodes = [pid for pid in children(os.getpid()) if named(pid) == "raylet"]
        found["ps_buffers"] = len(semaphores(nodes)) / 2
        processes = [*training.coordinator.processes().values(), *actors("ray::")]
        training.strategy.close()
    found["processes_left"] = count_left(processes)
    found["semaphores_left"] = len(semaphores(nodes))
    return found


def problems(found: dict[str, float], faults: int, width: int) -> list[str]:
    """Returns what is wrong with the figures of a run."""
    wanted = {"ps_faults_survived": faults} | dict.fromkeys(
        ("ps_steps_lost", "ps_updates_miscounted", "processes_left", "semaphores_left"), 0
    )
    wrong = [f"{name} is {found[name]:g}, not {value}" for name, value in wanted.items() if found[name] != value]
    if found["ps_accuracy"] < ACCURACY:
        wrong.append(f"ps_accuracy is {found['ps_accuracy']:g}, below {ACCURACY}")
    if (found["ps_buffers"] > 0) != (width >= WIDE):
        wrong.append(f"{found['ps_buffers']:g} buffers in shared memory at width {width}")
    return wrong


def main() -> None:
    """Prints a line for each fault and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60, help="steps that are under way when a fault comes")
    parser.add_argument(
        "--strike", default="", help="the faults, for example worker:SIGKILL,ps:SIGSTOP; any by default"
    )
    parser.add_argument("--width", type=int, default=WIDE, help="units of each of two hidden layers")
    parser.add_argument("--at-once", type=int, default=1, help="faults in each round")
    parser.add_argument("--deadline", type=float, help="seconds for all; by default 420, and 45 for each fault")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    # After that it hangs: this prints where, and ends the process; Ray's end with it.
    faulthandler.dump_traceback_later(options.deadline or 120 + LONGEST_WAIT_S + 45 * options.faults, exit=True)
    found = run(options.faults, options.at_once, options.seed, options.steps, options.strike.split(","), options.width)
    faulthandler.cancel_dump_traceback_later()
    for name, value in found.items():
        print(f"RESULT {name} {value:g}")
    if wrong := problems(found, options.faults, options.width):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
