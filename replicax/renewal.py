"""Values of an earlier world, made again for the present one, where workers come and go."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Protocol

import jax

import replicax.membership.worlds as worlds
from replicax.containers import opened
from replicax.errors import ElasticError
from replicax.typing import Leaf, PyTree
from replicax.values import PerReplica, is_per_replica

_SOURCE = "_replicax_source"  # an attribute of an array: of what it was made, and which leaf of that it is


class Source(Protocol):
    """The rows that arrays on devices were made of, which can be split anew for another world.

    Attributes:
        number: The number of the world that the arrays belong to.
    """

    number: int

    def leaves(self) -> Sequence[Leaf]:
        """Returns the leaves of the same rows in the present world: the same objects each time it is asked there."""


def note_source(leaves: Sequence[Leaf], source: Source) -> None:
    """Notes on the arrays in `leaves` of what they were made, so that `renewed` can make them again."""
    for index, leaf in enumerate(leaves):
        array = leaf.stacked if isinstance(leaf, PerReplica) else leaf
        if isinstance(array, jax.Array):  # Not rows that stayed on the host: they belong to no world.
            setattr(array, _SOURCE, (source, index))


def renewed(tree: PyTree) -> PyTree:
    """Returns `tree` for the present world: batches of an earlier one have the same global rows, split anew.

    The same batch renewed twice in one world is the same object. Other values, such as results of an earlier world, are
    left as they are. A tree without batches of an earlier world is returned itself.

    Raises:
        ElasticError: A value of an earlier world is neither a batch nor whole on this worker.
    """
    leaves, treedef = jax.tree.flatten(opened(tree), is_leaf=is_per_replica)
    number = worlds.number()
    present = [_present(leaf, number) for leaf in leaves]
    return tree if all(map(operator.is_, leaves, present)) else jax.tree.unflatten(treedef, present)


def _present(leaf: Leaf, number: int) -> Leaf:
    array = leaf.stacked if isinstance(leaf, PerReplica) else leaf
    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        return leaf
    source: Source | None
    source, index = getattr(array, _SOURCE, (None, 0))
    if source is not None:
        return leaf if source.number == number else source.leaves()[index]
    if array.is_fully_addressable or array.is_fully_replicated or _is_present(array):
        return leaf
    raise ElasticError(
        f"A value of shape {array.shape} was made when other workers took part. Parts of it are on workers that may be "
        "lost, and it is no batch of a distributed dataset, which could be given again. Take batches from "
        "strategy.distribute_dataset, or reduce or gather the value before the next call."
    )


def _is_present(array: jax.Array) -> bool:
    """Returns whether an array is on devices of the present world: each world has a client of its own."""
    device: Leaf = next(iter(array.sharding.device_set))  # JAX's types do not tell of `client`.
    return device.client is jax.devices()[0].client
