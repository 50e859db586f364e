"""What runs on the hosts: `python -m tests.hosts.jobs NAME [arguments as JSON]`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np


def rows(count: int, seed: int = 0) -> tuple[Any, Any]:
    """Returns inputs and targets of a regression."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 6)).astype("float32"), rng.normal(size=(count, 2)).astype("float32")


def descend(strategy: Any, steps: int, pause: float = 0.0, floats: int = 0) -> list[list[float]]:
    """Trains a linear model with gradient descent, and says each step; returns its weights.

    Args:
        strategy: Where.
        steps: How many steps.
        pause: Seconds between them.
        floats: How many numbers more each step sums over the replicas.
    """
    import jax.numpy as jnp

    import replicax as rx

    x, y = rows(16)
    with strategy.scope():
        weights = rx.Variable(np.ones((6, 2), np.float32), name="weights")
        ballast = rx.Variable(np.ones(floats, np.float32), name="ballast") if floats else None
    variables = [weights, ballast] if ballast is not None else [weights]

    def step(batch: Any) -> Any:
        x, y = batch

        def loss() -> Any:
            size = 0.0 if ballast is None else jnp.mean(ballast.value**2) * jnp.sum(x) * 1e-3
            return jnp.sum((x @ weights.value - y) ** 2) / 16 + size

        value, gradients = rx.value_and_grad(loss, variables)()
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.05 * gradient)
        return value

    run = rx.function(lambda batch: strategy.reduce("sum", strategy.run(step, args=(batch,)), axis=None))
    for number, batch in enumerate(strategy.distribute_dataset([(x, y)] * steps)):
        loss = float(run(batch))
        print(f"step {number} loss {loss:.6f}", flush=True)
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
    print(f"weights {json.dumps(descend(strategy, **arguments))}", flush=True)


if __name__ == "__main__":
    {"workers": workers}[sys.argv[1]](**json.loads(sys.argv[2]))
