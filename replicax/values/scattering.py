"""Changing some rows of a variable: `scatter_add` and the like of `tf.Variable`, and `IndexedSlices`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checks import checked_array
from replicax.compat.jax import strongly_typed, vary
from replicax.compat.jax_primitives import assert_equal_over_axis
from replicax.errors import ArgumentError, ReduceError, VariableError
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import Leaf, PyTree
from replicax.values import component_here
from replicax.values.aggregation import VariableAggregation, first_replica


class IndexedSlices(NamedTuple):
    """Rows of an array by their indices; TensorFlow's class of that name.

    Attributes:
        values: The rows, shape `(*indices.shape, *row shape)`.
        indices: Their indices, integers of any shape.
        dense_shape: Shape of the array; accepted as in TensorFlow, not used.

    Example:
        >>> slices = rx.IndexedSlices(values=[[1.0, 2.0]], indices=[3], dense_shape=[5, 2])
        >>> slices.indices
        [3]
    """

    values: jax.typing.ArrayLike
    indices: jax.typing.ArrayLike
    dense_shape: Sequence[int] | None = None


class Entries(NamedTuple):
    """Which entries of a variable are changed, and by what."""

    indices: jax.Array  # (number, dimensions): the first indices of each entry
    updates: jax.Array  # (number, *variable.shape[dimensions:]), of the variable's dtype


_OVERWRITE = ("max", "min", "update")  # The result of several replicas' changes depends on their order.


class Scattered:
    """The scatter methods of `tf.Variable`, for what has a shape, a dtype and `_scatter`.

    Each takes `IndexedSlices` (ours, TensorFlow's or anything with `values` and `indices`), or indices and updates in
    this order. (`use_locking`, which TensorFlow has in second place, changes nothing; to give False as the update,
    write `updates=False`.) If one index comes several times, all its updates count. Updates may be one number, for all
    indices. Indices out of range are an error; in a step that is known too late, and nothing is changed there.

    In `strategy.run`, the replicas' slices are combined by the variable's aggregation, as in tf.distribute: under
    `"sum"` all of them are applied, under `"mean"` all of them with the updates divided by the number of replicas,
    under `"only_first_replica"` those of replica 0. `scatter_max`, `scatter_min` and `scatter_update` take `"none"`
    and `"only_first_replica"` only. Each method returns the new value.

    Raises:
        ArgumentError: The arguments are neither slices nor indices and updates.
        VariableError: Indices or updates of another shape or dtype, or out of range; a variable without dimensions, or
            one that keeps a component for each replica; or an aggregation that gives the call no meaning.
        ReplicaDivergenceError: The slices may differ between replicas and the variable has no aggregation.
    """

    __slots__ = ()
    name: str
    _shape: tuple[int, ...]
    _dtype: jax.typing.DTypeLike

    def _scatter(self, op: str, entries: Entries) -> jax.Array:
        raise NotImplementedError

    def scatter_add(
        self, sparse_delta: Leaf, use_locking: Leaf = False, name: object = None, *, updates: Leaf = None
    ) -> jax.Array:
        """Adds updates to rows."""
        return self._scatter("add", self._rows(sparse_delta, use_locking, updates))

    def scatter_sub(
        self, sparse_delta: Leaf, use_locking: Leaf = False, name: object = None, *, updates: Leaf = None
    ) -> jax.Array:
        """Subtracts updates from rows."""
        return self._scatter("sub", self._rows(sparse_delta, use_locking, updates))

    def scatter_mul(
        self, sparse_delta: Leaf, use_locking: Leaf = False, name: object = None, *, updates: Leaf = None
    ) -> jax.Array:
        """Multiplies rows by updates."""
        return self._scatter("mul", self._rows(sparse_delta, use_locking, updates))

    def scatter_div(
        self, sparse_delta: Leaf, use_locking: Leaf = False, name: object = None, *, updates: Leaf = None
    ) -> jax.Array:
        """Divides rows by updates; integers towards zero."""
        return self._scatter("div", self._rows(sparse_delta, use_locking, updates))

    def scatter_max(
        self, sparse_delta: Leaf, use_locking: Leaf = False, name: object = None, *, updates: Leaf = None
    ) -> jax.Array:
        """Makes rows the larger of themselves and updates, element by element."""
        return self._scatter("max", self._rows(sparse_delta, use_locking, updates))

    def scatter_min(
        self, sparse_delta: Leaf, use_locking: Leaf = False, name: object = None, *, updates: Leaf = None
    ) -> jax.Array:
        """Makes rows the smaller of themselves and updates, element by element."""
        return self._scatter("min", self._rows(sparse_delta, use_locking, updates))

    def scatter_update(
        self, sparse_delta: Leaf, use_locking: Leaf = False, name: object = None, *, updates: Leaf = None
    ) -> jax.Array:
        """Replaces rows; of several updates to one row, some one stays."""
        return self._scatter("update", self._rows(sparse_delta, use_locking, updates))

    def batch_scatter_update(
        self, sparse_delta: Leaf, use_locking: Leaf = False, name: object = None, *, updates: Leaf = None
    ) -> jax.Array:
        """Replaces rows in each part of a batch.

        All dimensions of the indices but the last are those of a batch, which the variable and the updates begin with
        too: `variable[b, indices[b, i]] = updates[b, i]`.
        """
        return self._scatter("update", self._rows(sparse_delta, use_locking, updates, batched=True))

    def scatter_nd_add(self, indices: Leaf, updates: Leaf, name: object = None) -> jax.Array:
        """Adds updates to the entries that the last dimension of the indices names."""
        return self._scatter("add", self._entries(indices, updates))

    def scatter_nd_sub(self, indices: Leaf, updates: Leaf, name: object = None) -> jax.Array:
        """Subtracts updates from the entries that the last dimension of the indices names."""
        return self._scatter("sub", self._entries(indices, updates))

    def scatter_nd_update(self, indices: Leaf, updates: Leaf, name: object = None) -> jax.Array:
        """Replaces the entries that the last dimension of the indices names."""
        return self._scatter("update", self._entries(indices, updates))

    def scatter_nd_max(self, indices: Leaf, updates: Leaf, name: object = None) -> jax.Array:
        """Makes the entries that the last dimension of the indices names the larger of themselves and updates."""
        return self._scatter("max", self._entries(indices, updates))

    def scatter_nd_min(self, indices: Leaf, updates: Leaf, name: object = None) -> jax.Array:
        """Makes the entries that the last dimension of the indices names the smaller of themselves and updates."""
        return self._scatter("min", self._entries(indices, updates))

    def _rows(self, sparse_delta: Leaf, second: Leaf, updates: Leaf, batched: bool = False) -> Entries:
        indices, updates = _indices_and_updates(sparse_delta, second, updates)
        indices = self._checked(indices)
        if not batched:
            return self._entries(indices[..., None], updates)
        shape = tuple(self._shape)
        batch = indices.shape[:-1]
        if shape[: len(batch)] != batch:
            raise self._unfit(
                "indices", indices.shape, f"shape {shape[: indices.ndim - 1]} before their last dimension"
            )
        places = [jnp.broadcast_to(each[..., None], indices.shape) for each in np.indices(batch)]
        return self._entries(jnp.stack([*places, indices], axis=-1), updates)

    def _entries(self, indices: Leaf, updates: Leaf) -> Entries:
        shape = tuple(self._shape)
        indices, dtype = self._checked(indices), self._dtype
        if not indices.ndim or not 0 < indices.shape[-1] <= len(shape):
            raise self._unfit("indices", indices.shape, f"at most {len(shape)} index(es) in their last dimension")
        dimensions = indices.shape[-1]
        self._check_range(indices, shape[:dimensions])
        wanted = (*indices.shape[:-1], *shape[dimensions:])
        updates = strongly_typed(checked_array("updates", component_here(updates, self.name)), dtype)
        if updates.ndim and updates.shape != wanted:
            raise self._unfit("updates", updates.shape, f"shape {wanted}, or are one number")
        updates = jnp.broadcast_to(updates, wanted)
        return Entries(indices.reshape(-1, dimensions), updates.reshape(-1, *shape[dimensions:]))

    def _checked(self, indices: Leaf) -> jax.Array:
        indices = checked_array("indices", component_here(indices, self.name))
        if not jnp.issubdtype(indices.dtype, jnp.integer):
            raise VariableError(f"Rows of variable {self.name!r} are named by integers, got {indices.dtype} indices.")
        return indices

    def _check_range(self, indices: jax.Array, shape: tuple[int, ...]) -> None:
        if isinstance(indices, jax.core.Tracer) or not indices.is_fully_addressable:
            return
        known = np.asarray(indices)
        wrong = ((known < 0) | (known >= np.asarray(shape))).any(axis=-1)
        if wrong.any():
            raise VariableError(
                f"Variable {self.name!r} has entries from 0 to {[size - 1 for size in shape]}, got the index "
                f"{known[wrong][0].tolist()}."
            )

    def _unfit(self, what: str, shape: tuple[int, ...], wanted: str) -> VariableError:
        own = tuple(self._shape)
        return VariableError(f"The {what} for variable {self.name!r} of shape {own} have {wanted}; got shape {shape}.")


def _indices_and_updates(sparse_delta: Leaf, second: Leaf, updates: Leaf) -> tuple[Leaf, Leaf]:
    """Returns indices and updates: the second argument, where it is not TensorFlow's `use_locking`, or `updates`."""
    if hasattr(sparse_delta, "indices") and hasattr(sparse_delta, "values"):
        if updates is None and (second is None or isinstance(second, bool)):
            return sparse_delta.indices, sparse_delta.values
    elif updates is not None:
        return sparse_delta, updates
    elif second is not None and second is not False:
        return sparse_delta, second
    updates = second if updates is None else updates
    raise ArgumentError(
        "A scatter method takes rx.IndexedSlices(values, indices), or indices and updates: "
        f"scatter_add(indices, updates). Got {type(sparse_delta).__name__} and {type(updates).__name__}."
    )


def scattered(op: str, value: jax.Array, entries: Entries) -> jax.Array:
    """Returns `value` with changed entries; those whose indices are out of range are left out."""
    # `op` is `"add"`, `"sub"`, `"mul"`, `"div"`, `"max"`, `"min"` or `"update"`.
    where = tuple(entries.indices[:, i] for i in range(entries.indices.shape[1]))
    how: dict[str, Any] = {"mode": "drop", "wrap_negative_indices": False}
    if op == "div":
        divisor = jnp.ones_like(value).at[where].multiply(entries.updates, **how)
        return jax.lax.div(value, divisor)
    if op == "sub":
        return value.at[where].add(-entries.updates, **how)
    return getattr(value.at[where], {"mul": "multiply", "update": "set"}.get(op, op))(entries.updates, **how)


def aggregate_entries(op: str, entries: Entries, aggregation: VariableAggregation, replicas: int, name: str) -> Entries:
    """Combines the entries that each replica changes in a mirrored variable; without aggregation they stay its own."""
    if aggregation is VariableAggregation.NONE:
        return entries
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return Entries(*map(first_replica, entries))
    if op in _OVERWRITE:
        raise VariableError(
            f"Variable {name!r} (aggregation {aggregation.value!r}) would be changed by scatter_{op} of each replica, "
            "and there is no sum or mean of that. Create it with aggregation='only_first_replica', or make the slices "
            "equal on all replicas and create it without aggregation."
        )
    indices, updates = (_of_all_replicas(array) for array in entries)
    return Entries(indices, updates / replicas if aggregation is VariableAggregation.MEAN else updates)


def is_slices(value: object) -> TypeGuard[IndexedSlices]:
    """Returns whether `value` is `IndexedSlices` of ours: one leaf of a tree, for JAX's tree functions."""
    return isinstance(value, IndexedSlices)


def check_no_slices(tree: PyTree, call: str) -> None:
    """Checks that there are no `IndexedSlices` in a tree."""
    if any(map(is_slices, jax.tree_util.tree_leaves(tree, is_leaf=is_slices))):
        raise ReduceError(
            f"{call} got IndexedSlices, of which the same row may come several times. Combine them in the step: "
            "rx.get_replica_context().all_reduce(op, slices), or variable.scatter_add(slices)."
        )


def reduce_slices(slices: IndexedSlices, replicas: int, is_mean: bool) -> IndexedSlices:
    """Returns the slices of all replicas, equal on each of them, for a mean divided by the number of replicas."""
    values, indices = jnp.asarray(slices.values), jnp.asarray(slices.indices)
    if replicas > 1:
        values, indices = _of_all_replicas(values), _of_all_replicas(indices)
    else:
        values, indices = (assert_equal_over_axis(array, REPLICA_AXIS) for array in (values, indices))
    return IndexedSlices(values / replicas if is_mean else values, indices, slices.dense_shape)


def _of_all_replicas(array: jax.Array) -> jax.Array:
    return jax.lax.all_gather(vary(array, REPLICA_AXIS), REPLICA_AXIS, axis=0, tiled=True, to="invarying")
