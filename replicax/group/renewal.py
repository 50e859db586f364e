"""Values of an earlier world, made again for the present one, where workers come and go."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Protocol

import jax
from jax.sharding import SingleDeviceSharding

from replicax.cluster.key_value_store import ServiceStore, Store
from replicax.cluster.patience import CONNECTING
from replicax.cluster.signing import SignedStore
from replicax.contracts.group import current_group
from replicax.errors import BatchError, ElasticError
from replicax.typing import Leaf, PyTree
from replicax.values import PerReplica
from replicax.values.containers import flattened

_SOURCE = "_replicax_source"  # an attribute of an array: of what it was made, and which leaf of that it is
# Workers that read other data than the others differ in nearly every batch: some calls are enough to find them.
_CALLS_BETWEEN_COMPARISONS = 64
_FIRST_CALLS_OF_A_WORLD = 3


class Source(Protocol):
    """The rows that arrays on devices were made of, which can be split anew for another world."""

    number: int  # of the world that the arrays belong to

    def leaves(self) -> Sequence[Leaf]:
        """Returns the leaves of the same rows in the present world: the same objects each time it is asked there."""

    def digest(self) -> str:
        """Returns a digest of the rows, which is the same on all workers."""


def note_source(leaves: Sequence[Leaf], source: Source) -> None:
    """Notes on the arrays in `leaves` their source, so that `renewed` can make them again."""
    for index, leaf in enumerate(leaves):
        array = leaf.stacked if isinstance(leaf, PerReplica) else leaf
        if isinstance(array, jax.Array):  # Not rows that stayed on the host: they belong to no world.
            setattr(array, _SOURCE, (source, index))


def renewed(tree: PyTree) -> PyTree:
    """Returns `tree` for the present world: batches of an earlier one have the same global rows, split anew."""
    leaves, treedef = flattened(tree, _is_stacked)
    number = current_group().number
    sources: dict[int, Source] = {}
    present = [_present(leaf, number, sources) for leaf in leaves]
    if sources:
        # All members come here for the arguments of their next call, so in some calls they can compare the batches.
        _comparison.make(list(sources.values()))
    return tree if all(map(operator.is_, leaves, present)) else jax.tree.unflatten(treedef, present)


def _is_stacked(value: Leaf) -> bool:
    return type(value) is PerReplica


def _present(leaf: Leaf, number: int, sources: dict[int, Source]) -> Leaf:
    """Returns a leaf for the present world, and adds its source to the others, by their ids."""
    array = leaf.stacked if type(leaf) is PerReplica else leaf
    noted: tuple[Source, int] | None = getattr(array, _SOURCE, None)
    if noted is not None:
        source, index = noted
        sources[id(source)] = source
        return leaf if source.number == number else source.leaves()[index]
    if isinstance(array, jax.Array):
        _check_readable(array)
    return leaf


def _check_readable(array: jax.Array) -> None:
    """Checks that a value that is no batch is of the present world, or whole on this worker."""
    if isinstance(array, jax.core.Tracer) or isinstance(array.sharding, SingleDeviceSharding):
        return  # At first the cheap questions: there may be thousands of arrays.
    if _is_whole(array) or _is_present(array):
        return
    raise ElasticError(
        f"A value of shape {array.shape} was made when other workers took part. Parts of it are on workers that may be "
        "lost, and it is no batch of a distributed dataset, which could be given again. Take batches from "
        "strategy.distribute_dataset, or reduce or gather the value before the next call."
    )


def _is_whole(array: jax.Array) -> bool:
    return array.is_fully_addressable or array.is_fully_replicated


def _is_present(array: jax.Array) -> bool:
    """Returns whether an array is on devices of the present world: each world has a client of its own."""
    device: Leaf = next(iter(array.sharding.device_set))  # JAX's types do not tell of `client`.
    return device.client is jax.devices()[0].client


class Comparison:
    """Compares the batches that the members give to the same call, in some of their calls, without a barrier."""

    def __init__(self, store: Store, seconds: float = CONNECTING.silence):
        self._store, self._seconds = SignedStore(store), seconds
        self._world, self._first = 0, 0

    def make(self, sources: Sequence[Source]) -> None:
        """Compares the batches in the arguments of this process's next call, if that is one to compare."""
        group = current_group()
        world, calls = group.world, group.calls
        if len(world.members) == 1:
            return
        if world.number != self._world:
            self._world, self._first = world.number, calls
        if calls - self._first >= _FIRST_CALLS_OF_A_WORLD and calls % _CALLS_BETWEEN_COMPARISONS:
            return
        key, own = f"replicax/batch/{world.number}/{calls}", " ".join(each.digest() for each in sources)
        name = world.names[world.index]
        first, found = self._first_note(key, name, own)
        if found != own:
            raise BatchError(
                f"The workers read different data. The rows that call {calls} gets have the digest {own} on {name} and "
                f"{found} on {first}. Where workers come and go, all of them must read the same global batches in the "
                "same order: give shuffles the same seed on every worker, and a dataset of a worker that joins the "
                "position of the others (strategy.join)."
            )

    def _first_note(self, key: str, name: str, own: str) -> tuple[str, str]:
        """Returns the name of the member that has noted its batches first, and their digests: by default its own."""
        try:
            if self._store.put_if_absent(key, f"{name}\n{own}".encode()):
                return name, own
            noted = self._store.get(key, self._seconds)
        except jax.errors.JaxRuntimeError:
            return name, own  # The store goes with its world. The call notices that, and is compared in the next one.
        if noted is None:
            return name, own
        first, _, found = noted.decode().partition("\n")
        return first, found


_comparison = Comparison(ServiceStore())
