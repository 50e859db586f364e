"""A host's process with replicax and hand-written JAX, for `wires.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import handwritten
import jax
import numpy as np
import optax
import wires_models as models
from jax.sharding import NamedSharding, PartitionSpec
from wires_told import serve

import replicax as rx


def adam() -> optax.GradientTransformation:
    return optax.adam(models.LEARNING_RATE, eps=models.EPSILON)


class Replicax:
    """The custom loop of a strategy: variables, `rx.value_and_grad`, optax."""

    def __init__(self, strategy: Any, sizes: tuple[int, ...]):
        with strategy.scope():
            first, treedef = jax.tree.flatten(models.first_weights(sizes))
            weights = [rx.Variable(value) for value in first]
            state, shape = jax.tree.flatten(adam().init(first))
            slots = [rx.Variable(value) for value in state]
        self.batches = list(strategy.distribute_dataset(models.batches(sizes), rx.InputOptions(prefetch=0)))
        self.count = 0

        def train_step(batch: Any) -> Any:
            def loss_fn() -> Any:
                params = jax.tree.unflatten(treedef, [weight.value for weight in weights])
                return handwritten.loss_sum(params, *batch) / models.ROWS

            loss, gradients = rx.value_and_grad(loss_fn, weights)()
            state = jax.tree.unflatten(shape, [slot.value for slot in slots])
            updates, state = adam().update(gradients, state)
            for weight, new in zip(weights, optax.apply_updates([w.value for w in weights], updates), strict=True):
                weight.assign(new)
            for slot, new in zip(slots, jax.tree.leaves(state), strict=True):
                slot.assign(new)
            return loss

        self.step = rx.function(
            lambda batch: strategy.reduce("sum", strategy.run(train_step, args=(batch,)), axis=None)
        )

    def __call__(self) -> Any:
        batch = self.batches[self.count % len(self.batches)]
        self.count += 1
        return self.step(batch)


class HandWritten:
    """One `jit` of one `shard_map`, as one would write it by hand."""

    def __init__(self, mesh: Any, sizes: tuple[int, ...]):
        def put(array: Any, *spec: str) -> Any:
            sharding = NamedSharding(mesh, PartitionSpec(*spec))
            return jax.make_array_from_callback(array.shape, sharding, lambda i: np.asarray(array[i]))

        params = models.first_weights(sizes)
        self.state = jax.tree.map(put, (params, jax.tree.map(np.asarray, adam().init(params))))
        self.batches = [tuple(put(array, "replica") for array in batch) for batch in models.batches(sizes)]
        self.step = jax.jit(handwritten.make_shard_map_step(mesh, models.ROWS), donate_argnums=(0, 1))
        self.count = 0

    def __call__(self) -> Any:
        batch = self.batches[self.count % len(self.batches)]
        self.count += 1
        params, state, loss = self.step(*self.state, *batch)
        self.state = params, state
        return loss


def main() -> None:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    variants: dict[str, Callable[[], Any]] = {}

    def make(name: str, model: str, by: str) -> dict[str, Any]:
        sizes = models.MODELS[model]
        variants[name] = Replicax(strategy, sizes) if by == "replicax" else HandWritten(strategy.mesh, sizes)
        return {}

    def drop(name: str) -> dict[str, Any]:
        del variants[name]
        return {}

    everyone = jax.jit(
        jax.shard_map(
            lambda x: jax.lax.psum(x, "replica"),
            mesh=strategy.mesh,
            in_specs=PartitionSpec("replica"),
            out_specs=PartitionSpec(),
        )
    )

    def gave(size: int) -> Any:
        shape = (strategy.mesh.size, size // 4)
        ones = np.ones((1, size // 4), np.float32)
        sharding = NamedSharding(strategy.mesh, PartitionSpec("replica"))
        return jax.make_array_from_callback(shape, sharding, lambda i: ones)

    def meet() -> None:
        everyone(gave(4)).block_until_ready()

    def run(name: str, steps: int) -> dict[str, Any]:
        meet()
        begin = time.perf_counter()
        losses = jax.block_until_ready([variants[name]() for _ in range(steps)])
        return {"seconds": (time.perf_counter() - begin) / steps, "losses": [float(loss) for loss in losses]}

    def reduce(size: int, times: int) -> dict[str, Any]:
        value = gave(size)
        return {"seconds": list(_timed(lambda: everyone(value).block_until_ready(), meet, times))}

    def trace(name: str, steps: int, folder: str) -> dict[str, Any]:
        with jax.profiler.trace(f"{folder}/{strategy.worker_index}"):
            return run(name, steps)

    serve({"make": make, "drop": drop, "run": run, "reduce": reduce, "trace": trace})


def _timed(do: Callable[[], Any], meet: Callable[[], None], times: int) -> Iterator[float]:
    do()
    for _ in range(times):
        meet()
        begin = time.perf_counter()
        do()
        yield time.perf_counter() - begin


if __name__ == "__main__":
    main()
