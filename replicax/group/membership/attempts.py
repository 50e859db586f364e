"""An attempt at a sum, in a thread of its own, so that the thread that trains can give it up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from replicax.runtime.threads import StoppedAtEnd


class CliqueLike(Protocol):
    """Processes that sum vectors; `replicax.compat.jax_cliques.Clique` is one."""

    def total(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the sums of vectors over all processes; raises a RuntimeError if one of them is lost."""

    def interrupt(self) -> bool:
        """Makes a sum that waits in another thread fail."""


class Packing(NamedTuple):
    """How arrays lie in vectors, one for each dtype, so that few messages travel."""

    dtypes: tuple[str, ...]  # of the vectors
    places: tuple[tuple[int, int, tuple[int, ...]], ...]  # of each array: vector, start in it, shape

    @property
    def signature(self) -> str:
        """A text that must be the same in all processes."""
        return "; ".join(f"{self.dtypes[vector]}{list(shape)}" for vector, _, shape in self.places)


def pack(values: Sequence[jax.Array]) -> tuple[Packing, list[np.ndarray]]:
    """Returns how arrays are packed, and the vectors."""
    dtypes = tuple(dict.fromkeys(value.dtype for value in values))
    groups: list[list[np.ndarray]] = [[] for _ in dtypes]
    lengths = [0] * len(dtypes)
    places = []
    for value in values:
        vector = dtypes.index(value.dtype)
        places.append((vector, lengths[vector], value.shape))
        groups[vector].append(np.asarray(value).reshape(-1))
        lengths[vector] += value.size
    return Packing(tuple(map(str, dtypes)), tuple(places)), [np.concatenate(group) for group in groups]


def unpack(packing: Packing, vectors: Sequence[np.ndarray], like: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the arrays in vectors, where the arrays `like` lie."""
    found = []
    for (vector, start, shape), old in zip(packing.places, like, strict=True):
        # A copy: on CPUs an array may share the memory of the vector, which belongs to a client that may go.
        values = np.array(vectors[vector][start : start + old.size]).reshape(shape)
        found.append(jax.device_put(jnp.asarray(values, old.dtype), old.sharding))
    return found


class Attempt:
    """A sum that a thread of its own makes."""

    def __init__(self, clique: Callable[[], CliqueLike], parts: Sequence[np.ndarray]):
        self.ended = threading.Event()
        self.result: list[np.ndarray] | None = None  # the sums; None if it has failed
        self.error = ""
        self.fault: Exception | None = None  # an error that is none of the network
        self._clique: CliqueLike | None = None
        self._given_up = False
        StoppedAtEnd("replicax-meeting-sum", self._run, clique, parts, stop=self.give_up).start()

    def give_up(self) -> None:
        """Lets the thread end, as soon as it can be interrupted."""
        self._given_up = True  # Before the clique is looked for: the thread does it the other way round.
        if self._clique is not None and not self.ended.is_set():
            self._clique.interrupt()

    def _run(self, clique: Callable[[], CliqueLike], parts: Sequence[np.ndarray]) -> None:
        try:
            self._clique = clique()
            if self._given_up:
                raise RuntimeError("The sum was given up before it began.")
            self.result = self._clique.total(parts)
        except RuntimeError as error:  # XLA's errors are of this kind.
            self.error = str(error) or repr(error)
        except Exception as error:
            self.error, self.fault = repr(error), error
        self.ended.set()
