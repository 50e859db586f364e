"""What strategies that run one program over a mesh of local devices have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from replicax import context
from replicax.collectives import CommunicationOptions, CrossDeviceOps, choose_cross_device_ops
from replicax.compat import strongly_typed
from replicax.data import (
    DistributedDataset,
    DistributedDatasetFromFunction,
    InputContext,
    InputOptions,
    ValueContext,
)
from replicax.errors import ArgumentError, ContextError
from replicax.program.function import ProgramCache, WeakProgramCaches
from replicax.program.nest import is_input
from replicax.program.replica import ReplicaCall, enclosing_program, variable_is_stacked
from replicax.runtime.devices import device_name
from replicax.runtime.mesh import mirrored_sharding, replica_mesh, stacked_sharding
from replicax.strategies.base import Strategy
from replicax.strategies.replica_context import ReplicaContext
from replicax.values import Mirrored, PerReplica, UnevenPerReplica, is_per_replica


class MeshStrategy(Strategy):
    """One replica on each of some local devices, all running the same program in step.

    Args:
        devices: The devices, in replica order.
        cross_device_ops: The algorithm that combines gradients; by default the one the options ask for.
        communication_options: Its options.
    """

    def __init__(
        self,
        devices: Sequence[jax.Device],
        cross_device_ops: CrossDeviceOps | None = None,
        communication_options: CommunicationOptions | None = None,
    ):
        self.devices = tuple(devices)
        self.mesh = replica_mesh(self.devices)
        self.communication_options = communication_options or CommunicationOptions()
        if cross_device_ops is None:
            cross_device_ops = choose_cross_device_ops(self.communication_options)
        elif not isinstance(cross_device_ops, CrossDeviceOps):
            raise ArgumentError(f"`cross_device_ops` must be an rx.CrossDeviceOps, got {cross_device_ops!r}.")
        self.cross_device_ops = cross_device_ops.for_devices(self.devices)
        self._meshes = {len(self.devices): self.mesh}
        self._programs = WeakProgramCaches()

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of devices."""
        return len(self.devices)

    # Running.

    def _run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], donate: tuple[int, ...]
    ) -> Any:
        return self._on_replicas(fn, args, kwargs, donate, in_replica_context=True)

    def _update(self, variable: Any, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        current = context.current()
        if current.manual_replicas is not None:
            # Inside a replica function (or merge_call) each replica holds its copy already.
            with context.entered(replica=None):
                unwrapped = jax.tree_util.tree_map(
                    lambda x: getattr(x, "component", x), (args, kwargs), is_leaf=is_per_replica
                )
                return fn(variable, *unwrapped[0], **unwrapped[1])
        self._check_cross_replica("strategy.update")
        return self._on_replicas(fn, (variable, *args), kwargs, (), in_replica_context=False)

    def _on_replicas(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        donate: tuple[int, ...],
        in_replica_context: bool,
    ) -> Any:
        if context.current().manual_replicas is not None:
            raise ContextError(
                "strategy.run was called inside merge_call or update, which run on the replicas already."
            )
        if enclosing_program() is not None:
            return ReplicaCall(self, fn, (args, kwargs), in_replica_context).traced()
        if context.current().frame is not None:
            raise ContextError("Differentiating strategy.run needs a program around it: decorate it with @rx.function.")
        if context.runs_eagerly():
            return ReplicaCall(self, fn, (args, kwargs), in_replica_context).eager()
        make = functools.partial(self._program_cache, donate=donate, in_replica_context=in_replica_context)
        return self._programs.get(fn, (donate, in_replica_context), make)(args, kwargs)

    def _program_cache(
        self, get_fn: Callable[[], Callable[..., Any]], donate: tuple[int, ...], in_replica_context: bool
    ) -> ProgramCache:
        def get_program() -> Callable[..., Any]:
            fn = get_fn()

            def program(*args: Any, **kwargs: Any) -> Any:
                return ReplicaCall(self, fn, (args, kwargs), in_replica_context).traced()

            program.__name__ = getattr(fn, "__name__", "program")
            return program

        return ProgramCache(get_program, donate)

    def replica_context(self, replicas: int) -> ReplicaContext:
        """Returns a new replica context for a step on `replicas` replicas."""
        return ReplicaContext(self, replicas)

    def merged_options(self, options: CommunicationOptions | None) -> CommunicationOptions:
        """Returns the strategy's communication options, overridden by those of one call."""
        return self.communication_options if options is None else self.communication_options.merge(options)

    # Placing. A step whose batch does not divide runs on the first few devices: a sub-mesh.

    def mesh_for(self, replicas: int) -> jax.sharding.Mesh:
        """Returns the mesh of the first `replicas` devices."""
        if replicas not in self._meshes:
            self._meshes[replicas] = replica_mesh(self.devices[:replicas])
        return self._meshes[replicas]

    def sharding(self, stacked: bool, replicas: int | None = None) -> jax.sharding.NamedSharding:
        """Returns where a mirrored (or stacked) value lives in a step on `replicas` replicas (default: all)."""
        mesh = self.mesh_for(replicas or self.num_replicas_in_sync)
        return stacked_sharding(mesh) if stacked else mirrored_sharding(mesh)

    def place(self, value: Any, stacked: bool = False, replicas: int | None = None) -> jax.Array:
        """Returns a copy of `value` on the strategy's devices; it shares no buffer with `value`."""
        if not isinstance(value, jax.Array):
            value = strongly_typed(value)
        return jax.device_put(value, self.sharding(stacked, replicas), may_alias=False)

    def load(self, variable: Any, replicas: int) -> jax.Array:
        """Returns a variable's value as a step on `replicas` replicas needs it.

        On a sub-mesh a mirrored variable is a view of the copies of the first devices. A stacked one comes whole, to
        each device: also the components of replicas that sit the step out count when it is read.
        """
        stacked = variable_is_stacked(variable)
        value = variable._value
        if value.sharding != self.sharding(stacked):
            value = self.place(value, stacked)
        if replicas == self.num_replicas_in_sync:
            return value
        return self.place(value, replicas=replicas) if stacked else self._first(value, replicas)

    def store(self, variable: Any, value: Any) -> None:
        """Writes a value that a step on any number of replicas has computed to all copies of a variable."""
        variable._value = self.place(value, variable_is_stacked(variable))

    def shrunk(self, array: Any, replicas: int) -> Any:
        """Returns an argument that is mirrored on all devices as a step on `replicas` replicas needs it."""
        if isinstance(array, jax.Array) and array.sharding == self.sharding(stacked=False):
            return self._first(array, replicas)
        return array

    def _first(self, mirrored: jax.Array, replicas: int) -> jax.Array:
        shards = {shard.device: shard.data for shard in mirrored.addressable_shards}
        held = [shards[device] for device in self.devices[:replicas]]
        return _assembled(mirrored.shape, self.sharding(stacked=False, replicas=replicas), held)

    def rejoined(self, nest: Any, replicas: int) -> Any:
        """Moves the mirrored results of a step on `replicas` replicas to all devices."""
        return jax.tree_util.tree_map(lambda leaf: self._rejoined(leaf, replicas), nest, is_leaf=is_per_replica)

    def _rejoined(self, value: Any, replicas: int) -> Any:
        if replicas == self.num_replicas_in_sync or is_per_replica(value) or not isinstance(value, jax.Array):
            return value
        if isinstance(value, jax.core.Tracer) or not value.sharding.is_fully_replicated:
            return value
        return self.place(value)

    def replicate(self, nest: Any) -> Any:
        """Returns a copy of the arrays and numbers in `nest` that every device of the strategy holds in full."""
        return jax.tree_util.tree_map(
            lambda x: self.place(strongly_typed(x)) if is_input(x) or isinstance(x, bool) else x, nest
        )

    # Values and datasets.

    def local_results(self, value: Any) -> tuple[Any, ...]:
        """Returns the components of `value`, one for each replica."""
        leaves, treedef = jax.tree_util.tree_flatten(value, is_leaf=is_per_replica)
        counts = {leaf.num_replicas for leaf in leaves if is_per_replica(leaf)}
        if not counts and any(isinstance(leaf, Mirrored) for leaf in leaves):
            counts = {self.num_replicas_in_sync}
        if not counts:
            return (value,)
        components = [_components(leaf, max(counts)) for leaf in leaves]
        return tuple(jax.tree_util.tree_unflatten(treedef, row) for row in zip(*components, strict=True))

    def distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> DistributedDataset:
        """Splits each global batch of `dataset` over the replicas."""
        return DistributedDataset(
            dataset,
            num_replicas=self.num_replicas_in_sync,
            mesh_for=self.mesh_for,
            options=options or InputOptions(),
            batch_size=batch_size,
        )

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDatasetFromFunction:
        """Distributes the per-replica batches of the dataset that `dataset_fn` returns."""
        return DistributedDatasetFromFunction(
            dataset_fn,
            num_replicas=self.num_replicas_in_sync,
            mesh_for=self.mesh_for,
            options=options or InputOptions(),
        )

    def distribute_values_from_function(self, value_fn: Callable[[ValueContext], Any]) -> Any:
        """Builds a per-replica value, one call of `value_fn` for each replica."""
        replicas = self.num_replicas_in_sync
        nests = [value_fn(ValueContext(i, replicas)) for i in range(replicas)]
        if replicas == 1:
            return self.replicate(nests[0])
        return jax.tree_util.tree_map(lambda *components: self._per_replica(components), *nests)

    def _per_replica(self, components: Sequence[Any]) -> PerReplica | UnevenPerReplica:
        if not all(is_input(c) or isinstance(c, bool) for c in components):
            return UnevenPerReplica(components)
        if len({(np.shape(c), np.result_type(c)) for c in components}) > 1:
            return UnevenPerReplica([jax.device_put(c, d) for c, d in zip(components, self.devices, strict=True)])
        rows = [jax.device_put(strongly_typed(c)[None], d) for c, d in zip(components, self.devices, strict=True)]
        shape = (len(rows), *rows[0].shape[1:])
        return PerReplica(_assembled(shape, self.sharding(stacked=True), rows))

    def __repr__(self) -> str:
        names = ", ".join(device_name(device) for device in self.devices)
        return f"{type(self).__name__}([{names}])"


def _assembled(shape: tuple[int, ...], sharding: jax.sharding.Sharding, shards: list[jax.Array]) -> jax.Array:
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, shards)


def _components(leaf: Any, replicas: int) -> tuple[Any, ...]:
    if is_per_replica(leaf):
        return leaf.values
    if isinstance(leaf, jax.Array) and isinstance(leaf, Mirrored):
        return tuple(shard.data for shard in leaf.addressable_shards)[:replicas]
    return (leaf,) * replicas
