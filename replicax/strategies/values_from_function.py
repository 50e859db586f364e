"""Per-replica values made by a function of the user's, which is called for each replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checks import call
from replicax.compat.jax import strongly_typed
from replicax.data import (
    ValueContext,
)
from replicax.errors import ArgumentError, ReplicaShapeError
from replicax.program.pytrees import is_number_like
from replicax.program.replicas.outer_program import enclosing_program, hold_to_strategy
from replicax.strategies.base import Strategy
from replicax.strategies.mesh_placement import MeshPlacement
from replicax.strategies.per_worker_values import SpreadPerReplica, compared, kind_of
from replicax.typing import Leaf, PyTree
from replicax.values import PerReplica, UnevenPerReplica
from replicax.values.containers import opened


def values_from_function(
    strategy: Strategy, placement: MeshPlacement, value_fn: Callable[[ValueContext], PyTree]
) -> PyTree:
    """Builds a per-replica value, one call of `value_fn` for each replica of this process."""
    replicas = strategy.num_replicas_in_sync
    if enclosing_program() is not None:
        hold_to_strategy(strategy)
        return _stacked_in_program(
            placement, [call("value_fn", value_fn, (ValueContext(i, replicas),)) for i in range(replicas)]
        )
    trees = [call("value_fn", value_fn, (ValueContext(i, replicas),)) for i in placement.processes.local]
    if replicas == 1:
        return strategy.replicate(trees[0])
    if not placement.spans_processes:
        _check_structures(trees)
        return jax.tree_util.tree_map(lambda *components: _per_replica(placement, components), *trees)
    leaves, structures = zip(*map(jax.tree_util.tree_flatten, trees), strict=True)
    found = placement.processes
    speaks_for = [found.local.index(replica) for replica in found.led]
    own = [structures[i] for i in speaks_for], [leaves[i] for i in speaks_for]
    layout = compared(found.led, *own, placement.workers)
    values = [
        _spread_over_workers(placement, SpreadPerReplica(own, kinds, layout.workers, speaks_for, placement.place))
        for own, kinds in zip(zip(*leaves, strict=True), layout.kinds, strict=True)
    ]
    return jax.tree_util.tree_unflatten(structures[0], values)


def _stacked_in_program(placement: MeshPlacement, trees: Sequence[PyTree]) -> PyTree:
    """Returns the per-replica value with these components, while a program is being traced."""
    _check_structures(trees)
    if len(trees) == 1:
        return trees[0]

    def stacked(*components: Leaf) -> PerReplica | UnevenPerReplica:
        if not all(map(is_number_like, components)):
            return UnevenPerReplica(components)
        arrays = [strongly_typed(component) for component in components]
        if len({(array.shape, array.dtype) for array in arrays}) > 1:
            raise ReplicaShapeError(
                "Inside an rx.function all components of a per-replica value must have the same shape and dtype, "
                f"got {UnevenPerReplica(arrays).kinds_of_all()}: one program runs on all replicas."
            )
        sharding = placement.sharding(stacked=True, replicas=len(trees))
        return PerReplica(jax.lax.with_sharding_constraint(jnp.stack(arrays), sharding))

    return jax.tree_util.tree_map(stacked, *map(opened, trees))


def _per_replica(placement: MeshPlacement, components: Sequence[PyTree]) -> PerReplica | UnevenPerReplica:
    """Returns a value with these components, which are those of all replicas."""
    arrays = all(is_number_like(component) for component in components)
    if arrays and len(set(map(kind_of, components))) == 1:
        return PerReplica(placement.assembled(_on_own_devices(placement, components, rows=True)))
    return UnevenPerReplica(_on_own_devices(placement, components) if arrays else components)


def _spread_over_workers(placement: MeshPlacement, spread: SpreadPerReplica) -> PerReplica | SpreadPerReplica:
    """Returns the value as one array where its components have one shape and dtype."""
    arrays = all(is_number_like(component) for component in spread.values)
    if not arrays or len(set(spread.kinds)) > 1:
        spread.values = _on_own_devices(placement, spread.values) if arrays else spread.values
        return spread
    if placement.processes.may_share:
        return PerReplica(placement.place(np.stack(spread.everyones()), stacked=True))
    return PerReplica(placement.assembled(_on_own_devices(placement, spread.values, rows=True)))


def _on_own_devices(
    placement: MeshPlacement, components: Sequence[PyTree], rows: bool = False
) -> tuple[jax.Array, ...]:
    """Returns the components of this process's replicas on their devices, or rows `(1, ...)` of them."""
    devices = [placement.processes.device_here(i) for i in placement.processes.local]
    arrays = [strongly_typed(component)[None] if rows else strongly_typed(component) for component in components]
    return tuple(jax.device_put(array, device) for array, device in zip(arrays, devices, strict=True))


def _check_structures(trees: Sequence[PyTree]) -> None:
    structures: list[jax.tree_util.PyTreeDef] = [jax.tree_util.tree_structure(tree) for tree in trees]
    first, *others = structures
    for i, other in enumerate(others, 1):
        if other != first:
            raise ArgumentError(
                "`value_fn` must return pytrees of the same structure for all replicas, got "
                f"{first} for replica 0 and {other} for replica {i}."
            )
