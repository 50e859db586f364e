"""Steps of any size for the sweeps of `scaling.py`: ours with variables and `rx.value_and_grad`, and JAX by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LossFn = Callable[[list[Any], Any], Any]
RATE = 1e-3


class Ours:
    """Gradient descent on variables of a strategy."""

    def __init__(self, devices: int, values: list[np.ndarray], loss_of: LossFn, batch: np.ndarray):
        import replicax as rx

        rx.config.set_virtual_devices(devices)
        strategy = rx.MirroredStrategy()
        with strategy.scope():
            variables = [rx.Variable(value) for value in values]
        (self._batch,) = strategy.distribute_dataset([batch], rx.InputOptions(prefetch=0))
        rows = len(batch)

        def replica_step(part: Any) -> Any:
            def loss_fn() -> Any:
                return loss_of([variable.value for variable in variables], part) / rows

            loss, gradients = rx.value_and_grad(loss_fn, variables)()
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_sub(RATE * gradient)
            return loss

        self._step = rx.function(lambda part: strategy.reduce("sum", strategy.run(replica_step, args=(part,))))
        self._variables, self._loss = variables, jnp.zeros(())

    def __call__(self) -> None:
        self._loss = self._step(self._batch)

    def wait(self) -> None:
        jax.block_until_ready((self._loss, [variable.value for variable in self._variables]))

    def last(self) -> float:
        return float(self._loss)


class ByHand:
    """The same with `jit` on one device, or `shard_map` on several."""

    def __init__(self, devices: int, values: list[np.ndarray], loss_of: LossFn, batch: np.ndarray):
        rows, alone = len(batch), devices == 1
        mesh = jax.make_mesh((devices,), ("replica",), axis_types=(jax.sharding.AxisType.Auto,))
        shared, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("replica")

        def step(values: list[Any], part: Any) -> Any:
            loss, gradients = jax.value_and_grad(lambda values: loss_of(values, part) / rows)(values)
            values = [value - RATE * gradient for value, gradient in zip(values, gradients, strict=True)]
            return values, loss if alone else jax.lax.psum(loss, "replica")

        mapped = jax.shard_map(step, mesh=mesh, in_specs=(shared, split), out_specs=(shared, shared))
        self._step = jax.jit(step if alone else mapped, donate_argnums=0)
        self._values = jax.device_put(values, jax.NamedSharding(mesh, shared), may_alias=False)
        self._batch = jax.device_put(batch, jax.NamedSharding(mesh, split))
        self._loss = jnp.zeros(())

    def __call__(self) -> None:
        self._values, self._loss = self._step(self._values, self._batch)

    def wait(self) -> None:
        jax.block_until_ready((self._loss, self._values))

    def last(self) -> float:
        return float(self._loss)


def _made(ours: bool, devices: int, values: list[np.ndarray], loss_of: LossFn, batch: np.ndarray) -> Any:
    return (Ours if ours else ByHand)(devices, values, loss_of, batch)


def _layers(sizes: list[int], ours: bool, devices: int, rows: int = 128) -> Any:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((m, n), np.float32) * np.float32(m**-0.5) for m, n in itertools.pairwise(sizes)]

    def loss_of(values: list[Any], x: Any) -> Any:
        for w in values:
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    return _made(ours, devices, values, loss_of, rng.random((rows, sizes[0]), np.float32))


def network(ours: bool, devices: int) -> Any:
    """The network of the other benchmarks."""
    return _layers([784, 700, 500, 10], ours, devices)


def parameters(ours: bool, count: int) -> Any:
    """Four layers of equal width with so many parameters in all; a batch of 16."""
    width = int((count / 4) ** 0.5)
    return _layers([width] * 5, ours, 1, rows=16)


def many_variables(ours: bool, count: int) -> Any:
    """So many variables of 64 numbers."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(64, np.float32) for _ in range(count)]

    def loss_of(values: list[Any], x: Any) -> Any:
        # Each by itself: XLA compiles a chain of as many operations for minutes, by hand too.
        return sum(jnp.sum((x - value) ** 2) for value in values)

    return _made(ours, 1, values, loss_of, rng.random((16, 64), np.float32))


def embedding(ours: bool, rows: int) -> Any:
    """A table of 16 numbers a row, of which 512 rows are looked up; its gradient is dense, as JAX makes it."""
    rng = np.random.default_rng(0)
    table = rng.random((rows, 16), np.float32)

    def loss_of(values: list[Any], ids: Any) -> Any:
        return jnp.sum(values[0][ids] ** 2)

    return _made(ours, 1, [table], loss_of, rng.integers(0, rows, 512, np.int32))


class _Repeated:
    """So many steps of a contestant as one."""

    def __init__(self, step: Any, count: int):
        self._step, self._count = step, count
        self.wait, self.last = step.wait, step.last

    def __call__(self) -> None:
        for _ in range(self._count):
            self._step()


def steps(ours: bool, count: int) -> Any:
    """So many steps of a network that computes next to nothing, one after the other."""
    return _Repeated(_layers([8, 8, 8], ours, 1, rows=8), count)
