"""A job with a fault that costs time, and notes what it has cost: `ledger_job.py FAULT FOLDER` (ledger.py)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

STEPS = 200
ROWS = 48
STEP_S = 0.02  # in the backward pass, of every worker
SLOW_S = 0.03  # of the slow one: by half
DELAY_S = 0.02
HALT_S = 4.0

kind, _, slow = sys.argv[1].partition(":")  # such as "slow_input:1"
folder = Path(sys.argv[2])
attempt = int(os.environ.get("REPLICAX_ATTEMPT", "0"))
workers = int(os.environ.get("JAX_NUM_PROCESSES", "1"))
index = int(os.environ.get("JAX_PROCESS_ID", "0"))
at_fault = not slow or int(slow) == index
random = np.random.default_rng([index, attempt])
truth: dict[str, float] = {}


def add(what: str, seconds: float) -> None:
    truth[what] = truth.get(what, 0.0) + seconds


def delay(seconds: float = DELAY_S) -> float:
    """Sleeps for about so many seconds; returns for how long."""
    begin = time.perf_counter()
    time.sleep(seconds * random.uniform(0.5, 1.5))
    return time.perf_counter() - begin


def backward(value: np.ndarray) -> np.ndarray:
    time.sleep(SLOW_S if kind == "slow_backward" and at_fault else STEP_S)
    return np.zeros_like(value)


def delayed(grad: jax.Array) -> jax.Array:
    """Returns a gradient of this worker after a while, which the program takes."""
    zeros = jax.pure_callback(backward, jax.ShapeDtypeStruct(grad.shape, grad.dtype), grad)
    return grad + jax.lax.pcast(zeros, "replica", to="varying")


def rows():
    for number in range(STEPS):
        if kind == "slow_input" and at_fault:
            delay(2 * DELAY_S)  # The next batch is read while a step is made.
        size = ROWS + workers * (number // 20) if kind == "new_shapes" and number % 20 == 10 else ROWS
        yield np.ones((size, 32), np.float32)


strategy = rx.MultiWorkerMirroredStrategy() if workers > 1 else rx.MirroredStrategy()
with strategy.scope():
    weight = rx.Variable(jnp.ones((32, 32)), name="weight")
    large = rx.Variable(jnp.ones((4096, 1024)), name="large", trainable=False)
    count = rx.Variable(jnp.zeros((), jnp.int32), name="count", trainable=False)


def step(x):
    def loss():
        return jnp.sum((x @ weight.value) ** 2) / (ROWS * 32)

    value, (grad,) = rx.value_and_grad(loss, [weight], aggregation=None)()
    grad = rx.get_replica_context().all_reduce("sum", delayed(grad))
    weight.assign_sub(1e-3 * grad)
    count.assign_add(1)
    return value


def train_step(x):
    return strategy.reduce("sum", strategy.run(step, args=(x,)), axis=None)


train = rx.function(train_step)


@rx.function
def heavy(x):
    for _ in range(6):
        x = jnp.tanh(x @ x)
    return x


def write_truth() -> None:
    folder.joinpath(f"truth-{index}-{attempt}.json").write_text(json.dumps(truth))


def fault(number: int) -> None:
    """Does what the fault does after a step."""
    if kind == "slow_callback" and at_fault:
        add("callbacks and user code", delay())
    elif kind == "evaluate" and number % 40 == 39:
        begin = time.perf_counter()
        with rx.ledger.section("evaluation"):
            time.sleep(1.0)
        add("evaluation", time.perf_counter() - begin)
    elif kind in ("save", "kill", "error") and number % (10 if kind == "save" else 40) == 9:
        begin = time.perf_counter()
        truth["saved"] = time.time()
        manager.save(number + 1)
        add("checkpoint", time.perf_counter() - begin)
        write_truth()
    elif kind == "kill" and number == 150 and attempt == 0 and at_fault:
        truth["killed"] = time.time()
        write_truth()
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "error" and number == 150 and attempt == 0 and at_fault:
        truth["killed"] = time.time()
        write_truth()
        raise RuntimeError("planted")
    elif kind == "halt" and number == 100 and at_fault:
        subprocess.Popen(["/bin/sh", "-c", f"sleep {HALT_S}; kill -CONT {os.getpid()}"])
        begin = time.perf_counter()
        os.kill(os.getpid(), signal.SIGSTOP)
        add("stall", time.perf_counter() - begin)
    elif kind == "stand" and number == 100 and at_fault:
        truth["stands"] = time.time()
        write_truth()
        time.sleep(1000)


def loop() -> None:
    done, call = 0, train
    if kind in ("kill", "error"):
        done = manager.restore_or_initialize() or 0
    data = iter(strategy.distribute_dataset(rows()))
    for number in range(STEPS):
        begin = time.perf_counter()
        batch = next(data)
        read = time.perf_counter() - begin
        add("waiting for input", read)
        if number < done:
            continue
        if kind == "recompile" and number % 20 == 10:
            call = rx.function(train_step)
        float(call(batch))
        fault(number)


manager = rx.CheckpointManager(
    rx.Checkpoint(weight=weight, large=large, count=count), folder / "checkpoints", async_=False
)
if kind == "hidden":
    x = jnp.ones((900, 900)) / 900
    heavy(x).block_until_ready()
    for _ in range(STEPS):
        x = heavy(x)
        time.sleep(0.002)
    x.block_until_ready()
else:
    loop()
write_truth()
