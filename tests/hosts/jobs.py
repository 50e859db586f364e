"""What runs on the hosts: `python -m tests.hosts.jobs NAME [arguments as JSON]`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROWS = 16


def rows() -> tuple[Any, Any]:
    """Returns inputs and targets of a regression."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 6)).astype("float32"), rng.normal(size=(ROWS, 2)).astype("float32")


def regression(strategy: Any, floats: int = 0) -> tuple[Any, Callable[[Any], Any]]:
    """Returns the weights of a linear model, and one step of gradient descent for them as each replica takes it.

    Args:
        strategy: Where.
        floats: How many numbers more each step sums over the replicas.
    """
    import jax.numpy as jnp

    import replicax as rx

    with strategy.scope():
        weights = rx.Variable(np.ones((6, 2), np.float32), name="weights", trainable=True)
        ballast = rx.Variable(np.zeros(floats, np.float32), name="ballast") if floats else None
    variables = [weights, ballast] if ballast is not None else [weights]

    def step(batch: Any) -> Any:
        x, y = batch

        def loss() -> Any:
            more = 0.0 if ballast is None else jnp.sum(x) * jnp.sum(ballast.value)
            return jnp.sum((x @ weights.value - y) ** 2) / ROWS + more

        value, gradients = rx.value_and_grad(loss, variables)()
        weights.assign_sub(0.05 * gradients[0])
        if ballast is not None:
            ballast.assign(0.0 * gradients[1])
        return value

    return weights, step


def told(number: int, loss: Any) -> None:
    """Prints that a step is done."""
    print(f"step {number} loss {float(loss):.6f}", flush=True)


def descend(strategy: Any, steps: int, pause: float = 0.0, floats: int = 0, folder: str = "") -> list[list[float]]:
    """Trains in step, and says each one; returns the weights.

    Args:
        strategy: Where.
        steps: How many steps there are in all.
        pause: Seconds between them.
        floats: See `regression`.
        folder: For checkpoints, from which it goes on; empty for none.
    """
    import replicax as rx

    weights, step = regression(strategy, floats)
    run = rx.function(lambda batch: strategy.reduce("sum", strategy.run(step, args=(batch,)), axis=None))
    with contextlib.ExitStack() as ending:
        manager = rx.CheckpointManager(folder, objects={"weights": weights}) if folder else None
        if manager is not None:
            ending.enter_context(manager)
        begin = (manager and manager.restore_or_initialize()) or 0
        print(f"begins at {begin}", flush=True)
        for number, batch in enumerate(strategy.distribute_dataset([rows()] * (steps - begin)), begin):
            told(number, run(batch))
            if manager is not None:
                manager.save(number + 1)
            time.sleep(pause)
    return np.asarray(weights).tolist()


def workers(start_timeout: float = 60, stall_timeout: float | None = 30, connect: str = "", **arguments: Any) -> None:
    """One worker of several; `connect` is the address of the first where JAX is to be connected before."""
    import jax

    import replicax as rx

    if connect:
        task = rx.cluster_resolver.detect_cluster().config
        jax.distributed.initialize(connect, task.num_processes, task.process_id)
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=start_timeout, stall_timeout=stall_timeout)
    said(descend(strategy, **arguments))


def coordinator(steps: int, pause: float = 0.0) -> None:
    """The coordinator of parameter servers; one step at a time, so that the numbers are those of one device."""
    import replicax as rx

    strategy = rx.ParameterServerStrategy(start_timeout=60)
    scheduling = rx.coordinator.ClusterCoordinator(strategy)
    weights, step = regression(strategy)
    run = rx.function(lambda x, y: strategy.run(step, args=((x, y),)))
    for number in range(steps):
        loss = scheduling.schedule(run, args=rows())
        scheduling.join()
        told(number, loss.fetch())
        time.sleep(pause)
    said(np.asarray(weights).tolist())
    strategy.close()


def counter(rounds: int, pause: float = 0.0, saved: int = 0, folder: str = "", **options: Any) -> None:
    """The coordinator of parameter servers; each step takes one from each weight, whatever else is under way.

    Args:
        rounds: How many times two steps are scheduled and waited for.
        pause: Seconds between them.
        saved: After which round there is a checkpoint.
        folder: For it; empty for none.
        **options: Of the strategy.
    """
    import jax.numpy as jnp

    import replicax as rx

    strategy = rx.ParameterServerStrategy(**{"start_timeout": 60, **options})
    with strategy.scope():
        weights = [rx.Variable(np.zeros(2, np.float32), name=f"weights{i}", trainable=True) for i in range(2)]

    def step() -> None:
        _, gradients = rx.value_and_grad(lambda: sum(jnp.sum(each.value) for each in weights), weights)()
        for each, gradient in zip(weights, gradients, strict=True):
            each.assign_sub(gradient)

    run = rx.function(lambda: strategy.run(step))
    objects = {str(i): each for i, each in enumerate(weights)}
    with contextlib.ExitStack() as ending:
        manager = ending.enter_context(rx.CheckpointManager(folder, objects=objects)) if folder else None
        scheduling = rx.coordinator.ClusterCoordinator(strategy, checkpoint_manager=manager)
        for number in range(rounds):
            for _ in range(2):
                scheduling.schedule(run)
            scheduling.join()
            print(f"round {number}", flush=True)
            if manager is not None and number == saved:
                manager.save(number)
                manager.wait_until_finished()
            time.sleep(pause)
        said([np.asarray(each).tolist() for each in weights])
    strategy.close()


def said(weights: list[list[float]]) -> None:
    """Prints what the training has come to."""
    print(f"weights {json.dumps(weights)}", flush=True)


if __name__ == "__main__":
    {"workers": workers, "coordinator": coordinator, "counter": counter}[sys.argv[1]](**json.loads(sys.argv[2]))
