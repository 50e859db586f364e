"""How `reduce`, `gather` and `local_results` read a value: as one component per replica, or one value for all."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.contracts.reduce_op import ReduceOp, as_mean, as_sum
from replicax.contracts.variable_access import is_per_replica_variable, is_variable, name_of
from replicax.errors import ReduceError
from replicax.program.kept_layouts import layout_in
from replicax.program.pytrees import is_number_like
from replicax.program.replicas.outer_program import returned_by
from replicax.program.results import COMBINED
from replicax.typing import Leaf, PyTree
from replicax.values import EqualPerReplica, ManualPerReplica, Mirrored, PerReplica, is_per_replica, normalize_axes
from replicax.values.equality import difference


class Components(Protocol):
    """A value with one component per replica, as it is combined."""

    @property
    def num_replicas(self) -> int:
        """Number of components."""

    def reduce(self, op: ReduceOp) -> jax.Array:
        """Combines them element by element."""

    def reduce_axis(self, op: ReduceOp, axis: int | Sequence[int]) -> jax.Array:
        """Combines them and, inside each, the entries along `axis`."""

    def gather(self, axis: int) -> jax.Array:
        """Concatenates them along `axis`, in replica order."""


class Reduction(NamedTuple):
    """Combines components element by element; with `axis`, the entries along it inside each of them too."""

    op: ReduceOp
    axis: int | Sequence[int] | None

    def __call__(self, each: Components) -> jax.Array:
        """Returns the combined components of a value."""
        return each.reduce(self.op) if self.axis is None else each.reduce_axis(self.op, self.axis)


class Gathering(NamedTuple):
    """Concatenates components along `axis`."""

    axis: int

    def __call__(self, each: Components) -> jax.Array:
        """Returns the concatenated components of a value."""
        return each.gather(self.axis)


Combine = Reduction | Gathering


@functools.partial(jax.jit, static_argnums=(1, 2))
def compiled(each: Components, combine: Combine, sharding: jax.sharding.Sharding) -> jax.Array:
    """Returns the combined components of a per-replica value as one program of all processes that have some."""
    combined: jax.Array = jax.lax.with_sharding_constraint(combine(each), sharding)
    return combined


def one_per_replica(leaf: Leaf, refused_if_equal: bool = False) -> Components | None:
    """Returns `leaf` as a value with one component per replica; None if it is one value for all of them."""
    if is_per_replica(leaf):
        return leaf
    if is_per_replica_variable(leaf):
        replicas = context.current().manual_replicas
        raw = leaf._read()
        return PerReplica(raw) if replicas is None else ManualPerReplica(raw, replicas)
    # In the middle of a replica function (`merge_call`, `update`) every array that may differ between replicas has
    # components. `refused_if_equal` says whether the caller raises an error if it is one value.
    manual = context.current().manual_replicas
    if manual is not None and isinstance(leaf, jax.Array):
        value, why = difference(leaf, refused_if_equal)
        return None if why is None else ManualPerReplica(value, manual)
    replicas = returned_by(leaf)
    return EqualPerReplica(leaf, replicas) if replicas else None


def value_of(leaf: Leaf) -> Leaf:
    """Returns the value that a variable has now, and anything else as it is."""
    return leaf.value if is_variable(leaf) else leaf


def digest_of_own(leaf: Leaf) -> str | None:
    """Returns what tells a value of Python, NumPy or this process's devices from another one; None for other values."""
    is_of_jax = isinstance(leaf, jax.Array)
    if not is_number_like(leaf) or isinstance(leaf, jax.core.Tracer) or (is_of_jax and not leaf.is_fully_addressable):
        return None
    array = np.asarray(leaf)
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()


def values_of(tree: PyTree) -> PyTree:
    """Returns `tree` with the values that its variables have now."""
    leaves, treedef = jax.tree_util.tree_flatten(tree, is_leaf=is_per_replica)
    return jax.tree_util.tree_unflatten(treedef, map(value_of, leaves)) if any(map(is_variable, leaves)) else tree


def reduced_plain(op: ReduceOp, leaf: Leaf, axis: int | Sequence[int] | None, replicas: int) -> Leaf:
    """Combines a value that is the same on all replicas, as if each of them had a copy."""
    value = value_of(leaf)
    # A sum over several replicas may not be meant: without `axis`, or of a value that is combined or mirrored.
    if op is ReduceOp.SUM and replicas > 1 and (axis is None or _is_for_all(value)):
        raise ReduceError(_no_sum(leaf, value, replicas))
    if axis is None and isinstance(value, (jax.Array, np.ndarray, np.generic)) and is_number_like(value):
        # One of a single replica is a plain array: it comes out as one of several would.
        return as_mean(jnp.asarray(value)) if op is ReduceOp.MEAN else as_sum(jnp.asarray(value))
    if axis is None:
        return value
    if not is_number_like(value):
        raise ReduceError(f"Only numbers can be combined, got {type(value).__name__}: {value!r:.60}.")
    array = jnp.asarray(value)
    axes = normalize_axes(axis, array.shape)
    return jnp.sum(array, axes) * replicas if op is ReduceOp.SUM else jnp.mean(array, axes)


def _is_for_all(value: Leaf) -> bool:
    return returned_by(value) == COMBINED or isinstance(value, Mirrored) or layout_in(value) is not None


def _no_sum(leaf: Leaf, value: Leaf, replicas: int) -> str:
    if is_variable(leaf):
        what = f"variable {name_of(leaf)!r}"
    else:
        what = "an array" if isinstance(value, jax.Array) else f"{type(value).__name__}: {value!r:.60}"
    if returned_by(value) == COMBINED:
        why = "It has been reduced or gathered already; use it as it is"
    elif isinstance(value, jax.Array):
        why = "It is one value for all of them, no result of strategy.run, and perhaps it has been reduced already"
    else:
        why = (
            "It is one value for all of them; to count it once per replica, return it from strategy.run as an array; "
            "one that each worker has for itself goes through strategy.distribute_values_from_function"
        )
    return (
        f"Only per-replica values can be summed over replicas, got {what}. {why}: a sum would multiply it by "
        f"{replicas}."
    )
