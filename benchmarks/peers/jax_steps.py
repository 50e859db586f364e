"""Steps as one would write them by hand in JAX, on one device, on several, and on several processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import handwritten as hand
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SHARED, SPLIT = PartitionSpec(), PartitionSpec("replica")
SMALL = 16 * 1024
"""Leaves of fewer elements than that are packed into one sum."""


class Step:
    """A compiled step with its state.

    Args:
        step: `(params, opt_state, x, y) -> (params, opt_state, loss)`.
        mesh: Devices, one axis `"replica"`; `None`: the default device, as plain `jax.jit` takes it.
        opt_spec: How a leaf of the optimizer's state is laid out.
        opt_shape: The shape that such a leaf has.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        mesh: Mesh | None,
        opt_spec: Callable[[Any], PartitionSpec] = lambda leaf: SHARED,
        opt_shape: Callable[[Any], Any] = lambda leaf: leaf,
    ):
        self._mesh = mesh
        params = hand.init_params()
        opt_state = hand.adam().init(jax.tree.map(opt_shape, params))
        self.state = (
            jax.tree.map(lambda leaf: self.put(leaf, SHARED), params),
            jax.tree.map(lambda leaf: self.put(leaf, opt_spec(leaf)), opt_state),
        )
        self.batch = self.put_batch(hand.make_batch(hand.ROWS))
        self._compiled = jax.jit(step, donate_argnums=(0, 1))
        self.loss: Any = None

    def put(self, array: Any, spec: PartitionSpec) -> jax.Array:
        """Places an array that every process has as a whole."""
        array = np.asarray(array)
        if self._mesh is None:
            return jax.device_put(array, may_alias=False)
        return jax.make_array_from_callback(array.shape, NamedSharding(self._mesh, spec), lambda i: array[i])

    def put_batch(self, batch: Any) -> Any:
        """Places a batch, its rows split over the devices."""
        if self._mesh is None:
            return jax.device_put(batch)
        return tuple(self.put(each, SPLIT) for each in batch)

    def __call__(self) -> None:
        params, opt_state, self.loss = self._compiled(*self.state, *self.batch)
        self.state = (params, opt_state)

    def wait(self) -> None:
        jax.block_until_ready((self.state, self.loss))

    def last(self) -> float:
        return float(self.loss)


def over_replicas(step: Callable[..., Any], mesh: Mesh, opt_spec: Any = SHARED) -> Callable[..., Any]:
    """Returns the step of one replica as a step of all; nothing is summed but what the step sums itself."""
    return jax.shard_map(
        step, mesh=mesh, in_specs=(SHARED, opt_spec, SPLIT, SPLIT), out_specs=(SHARED, opt_spec, SHARED),
        check_vma=False,
    )  # fmt: skip


def packed_step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
    """Sums the large gradients one by one, and the small ones and the loss as one vector."""
    loss, grads = jax.value_and_grad(lambda p: hand.loss_sum(p, x, y) / hand.ROWS)(params)
    leaves, treedef = jax.tree.flatten((grads, loss))
    small = [i for i, leaf in enumerate(leaves) if leaf.size < SMALL]
    pack = jax.lax.psum(jnp.concatenate([leaves[i].ravel() for i in small]), "replica")
    ends = np.cumsum([leaves[i].size for i in small])
    for i, part in zip(small, jnp.split(pack, ends[:-1]), strict=True):
        leaves[i] = part.reshape(leaves[i].shape)
    leaves = [leaf if i in small else jax.lax.psum(leaf, "replica") for i, leaf in enumerate(leaves)]
    grads, loss = jax.tree.unflatten(treedef, leaves)
    updates, opt_state = hand.adam().update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def zero1(mesh: Mesh) -> Step:
    """ZeRO-1: large gradients are reduce-scattered, each replica updates its part, and the parts are gathered."""
    parts = mesh.size

    def cut(leaf: Any) -> bool:
        return leaf.size >= SMALL

    def flat(leaf: Any) -> Any:
        return np.zeros(-(-leaf.size // parts) * parts, np.float32) if cut(leaf) else leaf

    def padded(leaf: jax.Array) -> jax.Array:
        return jnp.pad(leaf.ravel(), (0, -leaf.size % parts))

    def scattered(grad: jax.Array) -> jax.Array:
        if not cut(grad):
            return jax.lax.psum(grad, "replica")
        return jax.lax.psum_scatter(padded(grad), "replica", tiled=True)

    def gathered(param: jax.Array, update: jax.Array) -> jax.Array:
        if cut(param):
            update = jax.lax.all_gather(update, "replica", tiled=True)[: param.size].reshape(param.shape)
        return param + update

    def step(params: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda p: hand.loss_sum(p, x, y) / hand.ROWS)(params)
        updates, opt_state = hand.adam().update(jax.tree.map(scattered, grads), opt_state)
        return jax.tree.map(gathered, params, updates), opt_state, jax.lax.psum(loss, "replica")

    def spec(leaf: Any) -> PartitionSpec:
        return SPLIT if cut(leaf) else SHARED

    layout = jax.tree.map(spec, jax.eval_shape(hand.adam().init, jax.tree.map(flat, hand.init_params())))
    return Step(over_replicas(step, mesh, layout), mesh, spec, flat)


def by_name(kind: str, mesh: Mesh | None) -> Step:
    """Returns the step of that kind."""
    if mesh is None or kind == "gspmd":
        return Step(hand.make_gspmd_step(mesh, hand.ROWS), mesh)
    if kind == "shard_map":
        return Step(hand.make_shard_map_step(mesh, hand.ROWS), mesh)
    if kind == "packed":
        return Step(over_replicas(packed_step, mesh), mesh)
    return {"zero1": zero1}[kind](mesh)


def replicas(kind: str, devices: int = 1) -> Step:
    """Returns a step on this process's devices, or with `kind` "jit" on the default one alone."""
    if kind == "jit":
        return by_name(kind, None)
    return by_name(kind, jax.make_mesh((devices,), ("replica",), axis_types=(jax.sharding.AxisType.Auto,)))


def process_mesh() -> Mesh:
    """Joins the other processes, over Gloo, and returns the mesh of all their devices."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    coordinator = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(coordinator, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
    return Mesh(np.array(jax.devices()), ("replica",))


def processes(kind: str) -> Step:
    """Returns a step on all processes."""
    return by_name(kind, process_mesh())


class Fed:
    """An epoch of a hand-written loop over arrays: take rows, put them on the devices, make a step.

    Args:
        kind: The step.
        devices: Devices of this process.
        steps: Steps in an epoch.
    """

    def __init__(self, kind: str, devices: int, steps: int):
        self._x, self._y = hand.make_batch(hand.ROWS * steps)
        self._step = replicas(kind, devices)
        self._losses: list[jax.Array] = []
        self._turn = 0

    def __call__(self) -> None:
        order = np.arange(len(self._x))
        if self._turn:
            np.random.default_rng(self._turn).shuffle(order)
        self._losses = []
        for start in range(0, len(order), hand.ROWS):
            rows = order[start : start + hand.ROWS]
            self._step.batch = self._step.put_batch((self._x[rows], self._y[rows]))
            self._step()
            self._losses.append(self._step.loss)

    def wait(self) -> None:
        self._step.wait()

    def last(self) -> float:
        return float(np.mean([float(loss) for loss in self._losses]))


def fed(kind: str, devices: int, steps: int) -> Fed:
    """Returns the hand-written loop."""
    return Fed(kind, devices, steps)


class AllReduce:
    """A `psum` of one vector a process.

    Args:
        elements: Length of the vector, float32.
        donate: Whether the sum takes the memory of what was summed.
    """

    def __init__(self, elements: int, donate: bool):
        mesh = process_mesh()
        shape, layout = (mesh.size * elements,), NamedSharding(mesh, SPLIT)
        mine = np.full(elements, jax.process_index() + 1.0, np.float32)
        self._value = jax.make_array_from_callback(shape, layout, lambda _: mine)
        self._donate = donate
        self._result: Any = None
        spec = SPLIT if donate else SHARED
        summed = jax.shard_map(lambda v: jax.lax.psum(v, "replica"), mesh=mesh, in_specs=SPLIT, out_specs=spec)
        self._step = jax.jit(summed, donate_argnums=(0,) if donate else ())

    def __call__(self) -> None:
        self._result = self._step(self._value)
        self._result.block_until_ready()
        if self._donate:
            self._value = self._result

    def wait(self) -> None:
        return None

    def last(self) -> float:
        total = float(self._result.addressable_shards[0].data[-1])
        if self._donate:  # What piles up would overflow.
            self._value = self._value * 0
        return total


def all_reduce(elements: int, donate: bool = False) -> AllReduce:
    """Returns an all-reduce over all processes."""
    return AllReduce(elements, donate)
