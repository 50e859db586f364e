"""Flattening pytrees into the arrays that a compiled program handles and everything else.

Arrays and Python numbers become inputs and outputs of the program. Everything else (flags, strings, models,
variables, the numbers in modules of Equinox) is Python's business: it is part of a program's signature on the way in,
and comes back as the very object on the way out.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Hashable, Sequence

import jax
import numpy as np

from replicax.errors import ArgumentError, ReplicaShapeError
from replicax.program.call_checks import check_result
from replicax.program.flax.modules import held, released_leaf
from replicax.program.hints.foreign import check_no_tensor
from replicax.typing import Leaf, PyTree
from replicax.values import MASKED, PerReplica, UnevenPerReplica, holds_numbers
from replicax.values.containers import flattened, found_in, is_value, opened, settings_among

_NUMBERS = (int, float, complex, np.generic)


def is_array(leaf: Leaf) -> bool:
    """Returns whether `leaf` is an array (also one that is being traced)."""
    return isinstance(leaf, (jax.Array, np.ndarray))


def is_input(leaf: Leaf) -> bool:
    """Returns whether an argument is a value of the program: an array or a number, but not a bool."""
    return is_array(leaf) or (isinstance(leaf, _NUMBERS) and not isinstance(leaf, bool))


def is_number_like(leaf: Leaf) -> bool:
    """Returns whether `leaf` can be placed on a device: an array of numbers, a number or a bool."""
    return (is_input(leaf) or isinstance(leaf, bool)) and holds_numbers(leaf)


@dataclasses.dataclass(frozen=True)
class Structure:
    """How to rebuild a tree from its arrays."""

    treedef: jax.tree_util.PyTreeDef  # `PerReplica` values are containers in it.
    static: tuple[tuple[int, Leaf], ...]  # the leaves that are no arrays, by position
    count: int  # of leaves

    def rebuild(self, arrays: Sequence[Leaf]) -> PyTree:
        """Returns the tree with `arrays` in the places of its arrays."""
        if not self.static:
            return jax.tree_util.tree_unflatten(self.treedef, arrays)
        leaves: list[Leaf] = [None] * self.count
        fixed = dict(self.static)
        remaining = iter(arrays)
        for i in range(self.count):
            leaves[i] = released_leaf(fixed[i]) if i in fixed else next(remaining)
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    @property
    def num_arrays(self) -> int:
        return self.count - len(self.static)

    def paths(self) -> list[tuple[Hashable, ...]]:
        """Returns for each array the keys that lead to it."""
        fixed = {i for i, _ in self.static}
        found, _ = jax.tree_util.tree_flatten_with_path(
            jax.tree_util.tree_unflatten(self.treedef, list(range(self.count)))
        )
        return [path for i, (path, _) in enumerate(found) if i not in fixed]


@functools.cache
def _is_of_jax(kind: type) -> bool:
    """Returns whether a class is one of JAX's arrays, outside of traces."""
    return issubclass(kind, jax.Array)


def flatten_inputs(tree: PyTree) -> tuple[list[jax.Array], Structure]:
    """Returns the arrays and numbers in `tree`, and how to rebuild it."""
    if "flax.nnx" in sys.modules:
        tree = held(tree)
    leaves: list[Leaf]
    try:
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        is_plain = all(map(_is_of_jax, set(map(type, leaves))))
    except ValueError:  # `flattened` says what it is.
        is_plain = False
    if is_plain:  # As in most steps: no leaf needs a look of its own.
        return leaves, Structure(treedef, (), len(leaves))
    leaves, treedef = flattened(tree)
    for leaf in leaves:
        _check_leaf(leaf)
    settings = settings_among(leaves, tree)
    static = tuple((i, leaf) for i, leaf in enumerate(leaves) if i in settings or not is_input(leaf))
    fixed = {i for i, _ in static}
    return [leaf for i, leaf in enumerate(leaves) if i not in fixed], Structure(treedef, static, len(leaves))


def flatten_outputs(tree: PyTree) -> tuple[list[jax.Array], Structure]:
    """Returns the arrays in the result `tree`, and how to rebuild it; plain Python values come back as they are."""
    check_result(tree)  # before JAX sees it: it is about to refuse generators itself
    leaves, treedef = flattened(held(tree))
    for leaf in leaves:
        check_result(leaf)
        if is_array(leaf):
            _check_numbers(leaf, "returned")
        else:
            _check_holds_no_traced_value(leaf)
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    static = tuple((i, leaf) for i, leaf in enumerate(leaves) if not is_array(leaf))
    return arrays, Structure(treedef, static, len(leaves))


def per_replica_arrays(tree: PyTree) -> tuple[list[bool], int | None]:
    """Returns which arrays of `tree`, in the order of `flatten_inputs`, stack a component per replica, and how many."""
    flags: list[bool] = []
    counts = set()
    tree = opened(held(tree))
    leaves = jax.tree_util.tree_leaves(tree, is_leaf=is_value)
    settings = settings_among(leaves, tree)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, PerReplica):
            counts.add(leaf.num_replicas)
            flags.append(True)
        elif is_input(leaf) and i not in settings:
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


def _check_leaf(leaf: Leaf) -> None:
    if isinstance(leaf, UnevenPerReplica):
        raise ReplicaShapeError(
            "All components of a per-replica argument must have the same shape and dtype, got "
            f"{leaf.kinds_of_all()}: one program runs on all replicas. strategy.distribute_dataset splits batches of "
            "any size evenly."
        )
    check_no_tensor(leaf, "passed")
    _check_numbers(leaf, "passed")


def _check_numbers(leaf: Leaf, what: str) -> None:
    if isinstance(leaf, np.ma.MaskedArray):
        raise ArgumentError(f"What was {what} has {MASKED}")
    if not holds_numbers(leaf):
        raise ArgumentError(
            f"Devices compute with numbers only, but an array of shape {leaf.shape} and dtype {leaf.dtype} was {what}. "
            "Encode it as numbers before (strings as indices into a vocabulary, times as `x.astype('int64')`), keep it "
            "out of the step, or turn it into a list."
        )
    if isinstance(leaf, np.ndarray | np.generic):
        kind, longest = leaf.dtype, _LONGEST.get(leaf.dtype.kind, leaf.dtype)
        if kind.itemsize > longest.itemsize or not kind.isnative:
            known = min(kind, longest, key=lambda each: each.itemsize).name
            raise ArgumentError(
                f"JAX knows no arrays of dtype {kind.str!r}, and one of shape {leaf.shape} was {what}. Convert it: "
                f"`x.astype({known!r})`."
            )


_LONGEST = {"f": np.dtype("float64"), "c": np.dtype("complex128")}  # that JAX knows; NumPy has longer ones


def _check_holds_no_traced_value(leaf: Leaf) -> None:
    where = found_in(leaf, lambda value: isinstance(value, jax.core.Tracer))
    if where is not None:
        name = type(leaf).__name__
        raise ArgumentError(
            f"A compiled function returned an object of class {name} that holds an array ({name}{where}). JAX does not "
            "know the class, so the array would stay one of the trace. Return the arrays themselves, in a dict, list, "
            f"tuple or dataclass, or register {name} with JAX (jax.tree_util.register_pytree_node)."
        )
