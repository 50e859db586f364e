"""Our own steps: the Keras loop and the optax loop under each strategy, and `fit`."""

from __future__ import annotations

from typing import Any

import jax
import overhead

import replicax as rx


def strategy_of(name: str, devices: int) -> rx.Strategy:
    """Returns a strategy over this process's virtual devices, or over all processes."""
    if name == "workers":
        return rx.MultiWorkerMirroredStrategy(start_timeout=60)
    rx.config.set_virtual_devices(devices)
    return {"mirrored": rx.MirroredStrategy, "central": rx.CentralStorageStrategy}[name]()


def loop(kind: str, strategy: str = "mirrored", devices: int = 1) -> Any:
    """Returns a custom loop."""
    place = strategy_of(strategy, devices)
    batch = overhead.distributed_batch(place)
    return {"keras": overhead.KerasLoop, "optax": overhead.OptaxLoop}[kind](place, batch)


class Epoch:
    """An epoch of a custom loop over a distributed dataset: what is left of `fit` without Keras's trainer."""

    def __init__(self, strategy: rx.Strategy, steps: int):
        x, y = overhead.hand.make_batch(overhead.ROWS * steps)
        starts = range(0, len(x), overhead.ROWS)
        batches = [(x[i : i + overhead.ROWS], y[i : i + overhead.ROWS]) for i in starts]
        self._batches = strategy.distribute_dataset(batches)
        self._loop = overhead.KerasLoop(strategy, next(iter(self._batches)))
        self._losses: list[Any] = []

    def __call__(self) -> None:
        self._losses = [self._loop.step(batch) for batch in self._batches]

    def wait(self) -> None:
        self._loop.wait()
        jax.block_until_ready(self._losses)

    def last(self) -> float:
        return sum(float(loss) for loss in self._losses) / len(self._losses)


def fed(devices: int, steps: int) -> Epoch:
    """Returns a custom loop over a distributed dataset."""
    return Epoch(strategy_of("mirrored", devices), steps)


class AllReduce:
    """An all-reduce of one vector a replica.

    Args:
        strategy: Where.
        elements: Length of the vector, float32.
    """

    def __init__(self, strategy: rx.Strategy, elements: int):
        import numpy as np

        rank = jax.process_index()
        self._value = strategy.distribute_values_from_function(lambda _: np.full(elements, rank + 1.0, np.float32))

        def summed(value: Any) -> Any:
            return rx.get_replica_context().all_reduce("sum", value)

        self._step = rx.function(lambda value: strategy.run(summed, args=(value,)))
        self._result: Any = None

    def __call__(self) -> None:
        self._result = self._step(self._value)
        self._result.block_until_ready()

    def wait(self) -> None:
        return None

    def last(self) -> float:
        return float(self._result.addressable_shards[0].data[-1])


def all_reduce(elements: int) -> AllReduce:
    """Returns an all-reduce over all processes."""
    return AllReduce(rx.MultiWorkerMirroredStrategy(start_timeout=60), elements)


class Servers:
    """Asynchronous training, on a cluster of its own on this machine."""

    def __init__(self, workers: int, servers: int):
        import parameter_server

        self._cluster = rx.testing.local_cluster(workers=workers, servers=servers)
        self._cluster.__enter__()
        self._loop = parameter_server.Asynchronous(workers, servers)

    def __call__(self) -> None:
        self._loop()

    def wait(self) -> None:
        self._loop.wait()

    def last(self) -> float:
        return self._loop.last()

    def end(self) -> None:
        """Ends the cluster."""
        self._loop.strategy.close()
        self._cluster.__exit__(None, None, None)


def servers(workers: int, servers: int) -> Servers:
    """Returns asynchronous training with a parameter server strategy."""
    return Servers(workers, servers)
