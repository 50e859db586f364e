"""Taking nested values apart into the arrays that a compiled program handles and everything else.

Arrays and Python numbers become inputs and outputs of the program. Everything else (flags, strings, models,
variables) is Python's business: it is part of a program's signature on the way in, and comes back as the very object
on the way out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax.errors import ArgumentError, ReplicaShapeError
from replicax.program.calls import check_result
from replicax.program.foreign import check_no_tensor
from replicax.values import PerReplica, UnevenPerReplica, is_per_replica

_NUMBERS = (int, float, complex, np.generic)


def is_array(leaf: Any) -> bool:
    """Returns whether `leaf` is an array (also one that is being traced)."""
    return isinstance(leaf, (jax.Array, np.ndarray))


def is_input(leaf: Any) -> bool:
    """Returns whether an argument is a value of the program: an array or a number, but not a bool."""
    return is_array(leaf) or (isinstance(leaf, _NUMBERS) and not isinstance(leaf, bool))


def is_number_like(leaf: Any) -> bool:
    """Returns whether `leaf` can be placed on a device: an array of numbers, a number or a bool."""
    return (is_input(leaf) or isinstance(leaf, bool)) and _holds_numbers(leaf)


def _holds_numbers(leaf: Any) -> bool:
    """Returns whether `leaf`, if it is of NumPy's, holds numbers; strings, objects, times and records are none."""
    if not isinstance(leaf, (np.ndarray, np.generic)):
        return True
    return leaf.dtype.kind not in "OSUMm" and leaf.dtype.names is None


@dataclasses.dataclass(frozen=True)
class Structure:
    """How to rebuild a nest from its arrays.

    Attributes:
        treedef: Structure of the nest, `PerReplica` values taken apart.
        static: The leaves that are no arrays, by position.
        count: Number of leaves.
    """

    treedef: Any
    static: tuple[tuple[int, Any], ...]
    count: int

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        """Returns the nest with `arrays` in the places of its arrays."""
        leaves: list[Any] = [None] * self.count
        fixed = dict(self.static)
        remaining = iter(arrays)
        for i in range(self.count):
            leaves[i] = fixed[i] if i in fixed else next(remaining)
        return jax.tree_util.tree_unflatten(self.treedef, leaves)


def take_apart_inputs(nest: Any) -> tuple[list[Any], Structure]:
    """Returns the arrays and numbers in `nest`, and how to rebuild it.

    Raises:
        ReplicaShapeError: A per-replica value has components of different shapes.
        ArgumentError: A leaf is a dataclass that JAX does not know how to take apart, or an array of strings, objects
            or times.
    """
    leaves, treedef = jax.tree_util.tree_flatten(nest)
    if all(type(leaf) is np.ndarray or isinstance(leaf, jax.Array) for leaf in leaves):
        for leaf in leaves:
            _check_numbers(leaf, "passed")
        return leaves, Structure(treedef, (), len(leaves))
    for leaf in leaves:
        _check_leaf(leaf)
    arrays = [leaf for leaf in leaves if is_input(leaf)]
    static = tuple((i, leaf) for i, leaf in enumerate(leaves) if not is_input(leaf))
    return arrays, Structure(treedef, static, len(leaves))


def take_apart_outputs(nest: Any) -> tuple[list[Any], Structure]:
    """Returns the arrays in the result `nest`, and how to rebuild it; plain Python values come back as they are."""
    check_result(nest)  # before JAX sees it: it is about to refuse generators itself
    leaves, treedef = jax.tree_util.tree_flatten(nest)
    for leaf in leaves:
        check_result(leaf)
        _check_dataclass(leaf)
        if is_array(leaf):
            _check_numbers(leaf, "returned")
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    static = tuple((i, leaf) for i, leaf in enumerate(leaves) if not is_array(leaf))
    return arrays, Structure(treedef, static, len(leaves))


def per_replica_arrays(nest: Any) -> tuple[list[bool], int | None]:
    """Tells which of the arrays of `nest` (as `take_apart_inputs` orders them) stack one component per replica.

    Returns:
        A flag for each array, and the number of replicas that the per-replica values have; None where there is none.

    Raises:
        ReplicaShapeError: The values have different numbers of components.
    """
    flags: list[bool] = []
    counts = set()
    for leaf in jax.tree_util.tree_leaves(nest, is_leaf=is_per_replica):
        if isinstance(leaf, PerReplica):
            counts.add(leaf.num_replicas)
            flags.append(True)
        elif is_input(leaf):
            flags.append(False)
    if len(counts) > 1:
        raise ReplicaShapeError(
            f"The per-replica values of one call must come from the same step, got values with {sorted(counts)} "
            "components. A partial batch runs on fewer replicas than a full one, and what replicas have of their own "
            "cannot go along. Keep it in a variable (rx.Variable(..., synchronization='on_read')), whose idle "
            "components wait; or make it one value between steps (strategy.reduce, or all_reduce inside the step); or "
            "use batches that divide by the replicas (rx.InputOptions(remainder='drop'))."
        )
    return flags, counts.pop() if counts else None


def _check_leaf(leaf: Any) -> None:
    if isinstance(leaf, UnevenPerReplica):
        raise ReplicaShapeError(
            "All components of a per-replica argument must have the same shape and dtype, got "
            f"{leaf.kinds_of_all()}: one program runs on all replicas. strategy.distribute_dataset splits batches of "
            "any size evenly."
        )
    check_no_tensor(leaf, "passed")
    _check_numbers(leaf, "passed")
    _check_dataclass(leaf)


def _check_numbers(leaf: Any, what: str) -> None:
    if not _holds_numbers(leaf):
        raise ArgumentError(
            f"Devices compute with numbers only, but an array of shape {leaf.shape} and dtype {leaf.dtype} was {what}. "
            "Encode it as numbers before (strings as indices into a vocabulary, times as `x.astype('int64')`), keep it "
            "out of the step, or turn it into a list."
        )


def _check_dataclass(leaf: Any) -> None:
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) and _holds_arrays(leaf):
        name = type(leaf).__name__
        raise ArgumentError(
            f"JAX does not know how to take the dataclass {name} apart. Register it once with "
            f"@jax.tree_util.register_dataclass above `class {name}`."
        )


def _holds_arrays(instance: Any) -> bool:
    values = (getattr(instance, field.name, None) for field in dataclasses.fields(instance))
    return any(is_array(value) or is_per_replica(value) for value in values)
