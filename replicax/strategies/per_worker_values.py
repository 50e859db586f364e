"""Per-replica values that several workers make together, each for its own replicas: compared when they are made."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import replicax.runtime.activity as activity
from replicax.cluster.exchange import exchanged
from replicax.compat.jax import strongly_typed
from replicax.contracts.reduce_op import ReduceOp
from replicax.errors import ReplicaShapeError, ValuesMismatchError
from replicax.program.pytrees import is_number_like
from replicax.runtime.transfer import from_all
from replicax.typing import Leaf
from replicax.values import UnevenPerReplica

_SMALL = 2**20  # bytes of a worker's components that go through host memory; more go over the devices
WHAT = "values from `value_fn`"


class Kind(NamedTuple):
    """Shape and dtype of a component."""

    shape: tuple[int, ...] | None  # None if it is no array
    dtype: str  # its name; of something else, the name of its class

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return 0 if self.shape is None else int(np.prod(self.shape, dtype=int)) * jnp.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return self.dtype if self.shape is None else f"{self.shape} {self.dtype}"


def kind_of(component: Leaf) -> Kind:
    """Returns what workers compare of a component."""
    if not is_number_like(component):
        return Kind(None, type(component).__name__)
    array = strongly_typed(component)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):  # random keys
        return Kind(None, f"{array.shape} {array.dtype}")
    return Kind(tuple(array.shape), str(array.dtype))


class ComponentKinds(NamedTuple):
    """The descriptions of every component of a pytree, on all workers."""

    kinds: list[tuple[Kind, ...]]  # for each leaf, the kinds of its components, by replica
    workers: tuple[int, ...]  # for each replica, the number of its worker


def compared(
    replicas: Sequence[int],
    structures: Sequence[jax.tree_util.PyTreeDef],
    leaves: Sequence[Sequence[Leaf]],
    names: Sequence[str],
) -> ComponentKinds:
    """Returns what all workers' components are: of the `replicas` that each speaks for; all call this together."""
    kinds = [[kind_of(leaf) for leaf in own] for own in leaves]
    message = json.dumps([[str(structure) for structure in structures], kinds, list(replicas)])
    with activity.phase(activity.WAIT, WHAT):
        told = [json.loads(zlib.decompress(each)) for each in exchanged(zlib.compress(message.encode()))]
    first = told[0][0][0]
    for worker, (found, _, _) in enumerate(told):
        odd = next((structure for structure in found if structure != first), None)
        if odd is not None:
            raise ValuesMismatchError(f"structures of {WHAT}", names[0], first, names[worker], odd)
    # Each replica has one worker that speaks for it.
    by_replica = {
        replica: ([_kind(*told_kind) for told_kind in own], worker)
        for worker, (_, each, ids) in enumerate(told)
        for own, replica in zip(each, ids, strict=True)
    }
    ordered = [by_replica[replica] for replica in sorted(by_replica)]
    return ComponentKinds(list(zip(*(own for own, _ in ordered), strict=True)), tuple(worker for _, worker in ordered))


def _kind(shape: list[int] | None, dtype: str) -> Kind:
    return Kind(None if shape is None else tuple(shape), dtype)


class SpreadPerReplica(UnevenPerReplica):
    """Components of shapes that differ, or of any type, each known to the worker of its replica only."""

    def __init__(
        self,
        components: Sequence[Leaf],
        kinds: Sequence[Kind],
        workers: Sequence[int],
        spoken_for: Sequence[int],
        place: Callable[[jax.typing.ArrayLike], jax.Array],
    ):
        super().__init__(components)
        self.kinds = tuple(kinds)  # of the components of all replicas
        # For each replica the worker that speaks for it; the places, among this worker's components, of the replicas
        # that it speaks for; and what places a value that all workers have computed alike.
        self._workers, self._spoken_for, self._place = tuple(workers), tuple(spoken_for), place

    @property
    def num_replicas(self) -> int:
        """Number of components, on all workers."""
        return len(self.kinds)

    def kinds_of_all(self) -> str:
        return f"[{', '.join(map(str, self.kinds))}]"

    def reduce_axis(self, op: ReduceOp, axis: int | Sequence[int]) -> jax.Array:
        """Combines all entries along `axis` of all components; all workers call this together."""
        return self._place(UnevenPerReplica(self.everyones()).reduce_axis(op, axis))

    def gather(self, axis: int) -> jax.Array:
        """Concatenates the components along `axis`; all workers call this together."""
        return self._place(UnevenPerReplica(self.everyones()).gather(axis))

    def everyones(self) -> list[np.ndarray]:
        """Returns the components of all replicas; all workers call this together."""
        if any(kind.shape is None for kind in self.kinds):
            raise ReplicaShapeError(f"Only arrays can be combined, got components {self.kinds_of_all()}.")
        own = b"".join(np.asarray(self.values[i]).tobytes() for i in self._spoken_for)
        sizes = [0] * (max(self._workers) + 1)
        for worker, kind in zip(self._workers, self.kinds, strict=True):
            sizes[worker] += kind.nbytes
        with activity.phase(activity.WAIT, WHAT):
            messages = exchanged(own) if max(sizes) <= _SMALL else _over_devices(own, sizes)
        arrays, starts = [], [0] * len(sizes)
        for worker, kind in zip(self._workers, self.kinds, strict=True):
            end = starts[worker] + kind.nbytes
            array = np.frombuffer(messages[worker][starts[worker] : end], jnp.dtype(kind.dtype))
            arrays.append(array.reshape(kind.shape or ()))
            starts[worker] = end
        return arrays

    def __repr__(self) -> str:
        return f"PerReplica({self.kinds_of_all()}; here: {', '.join(map(repr, self.values))})"


def _over_devices(own: bytes, sizes: Sequence[int]) -> list[bytes]:
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(own)] = np.frombuffer(own, np.uint8)
    (rows,) = from_all([padded])
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]
