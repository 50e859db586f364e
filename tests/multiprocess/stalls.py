"""A two-worker `fit` that something goes wrong in, and how a test waits for its end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.multiprocess.workers import free_ports

os.environ["KERAS_BACKEND"] = "jax"
_SLEEP = 1000.0
ROOT = Path(__file__).resolve().parent.parent.parent


def train(fault: str, seconds: float, stall_timeout: float, steps: int) -> None:
    """One worker. It prints a line per step, and the time when the fault strikes, if it is the one."""
    import keras

    import replicax as rx

    if fault in ("in order", "swap", "argument", "barrier"):
        return _run_in_order(fault, stall_timeout)
    if fault in ("sharded", "read"):
        strategy: Any = rx.FullyShardedStrategy(min_size=4, start_timeout=60, stall_timeout=stall_timeout)
    else:
        strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60, stall_timeout=stall_timeout)
    faulty = strategy.worker_index == 1 and fault
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        loss: Any = _slow_loss(seconds) if faulty == "compile" else "mae" if faulty == "program" else "mse"
        model.compile("sgd", loss)

    def strike(here: str, number: int) -> None:
        print(f"step {number}", flush=True)
        if faulty == here and number == 5:
            print(f"fault at {time.monotonic()}", flush=True)
            if fault == "error":
                raise RuntimeError("the user's own")
            if fault == "read":
                model.get_weights()
            if fault == "checkpoint":
                import replicax.runtime.activity as activity

                with activity.phase(activity.CHECKPOINT):
                    time.sleep(seconds)
            else:
                time.sleep(seconds)

    class Callback(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            strike(fault if fault in ("callback", "error", "checkpoint", "read") else "nothing", batch)

    def batches() -> Iterator[Any]:
        for number in range(steps):
            if faulty == "first batch" and number == 0:
                time.sleep(seconds)
            if fault == "input":
                strike("input", number)
            time.sleep(0.05)
            yield np.ones((4, 4), np.float32), np.ones((4, 3), np.float32)

    model.fit(batches(), steps_per_epoch=steps, callbacks=[Callback()], verbose=0)
    print("finished", flush=True)


def _run_in_order(fault: str, stall_timeout: float) -> None:
    """One worker that runs two programs in turns; once they are known, worker 1 does something else."""
    import jax.numpy as jnp

    import replicax as rx
    import replicax.group.health as health

    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60, stall_timeout=stall_timeout)
    with strategy.scope():
        a, b = rx.Variable(0.0), rx.Variable(0.0)

    def add_a(x):
        a.assign_add(rx.get_replica_context().all_reduce("sum", jnp.sum(x)))

    def add_b(x):
        b.assign_add(rx.get_replica_context().all_reduce("sum", 100 * jnp.sum(x)))

    batches = [np.arange(4, dtype=np.float32), np.ones(1, np.float32)]  # Of the last one worker 1 has no row.
    batch, part = strategy.distribute_dataset(batches)
    for _ in range(2):
        for add in (add_a, add_b):
            for x in (batch, part):
                strategy.run(add, args=(x,))
                strategy.reduce("sum", x, axis=0)
    print(f"known: {a.numpy().item()}, {b.numpy().item()} after {health.running().order.last[0]} calls", flush=True)

    def add_scaled(x, scale=1.0):
        a.assign_add(scale * rx.get_replica_context().all_reduce("sum", jnp.sum(x)))

    if fault == "argument":
        for number in range(4):
            strategy.run(add_scaled, args=(batch, 0.5 + strategy.worker_index * (number == 2)))
    if fault == "barrier" and strategy.worker_index == 1:
        strategy.barrier("data")
    elif fault == "barrier":
        rx.Checkpoint(a=a).write(os.path.join(os.environ["REPLICAX_LOG_DIR"], "checkpoint"))
    for add in (add_b, add_a) if fault == "swap" and strategy.worker_index == 1 else (add_a, add_b):
        strategy.run(add, args=(batch,))
    print("finished", flush=True)


def _slow_loss(seconds: float) -> Callable[..., Any]:
    import keras

    def mse(y: Any, predicted: Any) -> Any:
        time.sleep(seconds)  # while it is traced
        return keras.losses.mean_squared_error(y, predicted)

    return mse


@dataclasses.dataclass
class Job:
    """Two workers."""

    processes: list[subprocess.Popen]
    folder: Path

    def log(self, worker: int) -> str:
        return (self.folder / f"{worker}.log").read_text()

    def wait_for(self, worker: int, text: str, timeout: float = 60) -> re.Match[str]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = re.search(text, self.log(worker))
            if found:
                return found
            assert self.processes[worker].poll() is None, self.log(worker)
            time.sleep(0.05)
        raise AssertionError(f"worker {worker} never printed {text!r}:\n{self.log(worker)}")

    def end(self, worker: int, timeout: float = 60) -> tuple[int, float]:
        """Waits for a worker's end; returns its exit code and the time."""
        try:
            return self.processes[worker].wait(timeout), time.monotonic()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"worker {worker} hangs:\n{self.log(0)}\n----\n{self.log(1)}") from None


@contextmanager
def job(
    folder: Path,
    fault: str = "",
    seconds: float = _SLEEP,
    stall_timeout: float = 5.0,
    steps: int = 40,
    module: str = __name__,
    **extra: str,
) -> Iterator[Job]:
    """Starts two workers, which run the function `train` of a module; at the end none is left, whatever happens."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    processes = []
    for index in range(2):
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task), "REPLICAX_LOG_DIR": str(folder), **extra}
        code = f"import replicax as rx; rx.config.set_virtual_devices(1); from {module} import train; "
        code += f"train({fault!r}, {seconds}, {stall_timeout}, {steps})"
        with open(folder / f"{index}.log", "w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", code], env=environment, cwd=ROOT, stdout=log, stderr=log,
                    start_new_session=True,
                )
            )  # fmt: skip
    try:
        yield Job(processes, folder)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
