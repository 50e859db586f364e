"""The arrays of one synchronization: what an island sends, and what it makes of the sums."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

Arrays = Sequence[jax.Array]


class Sent(NamedTuple):
    """The arrays that islands add up, in the order in which they travel.

    Attributes:
        trained: For each trained variable how far this island has moved *back*: the value at the start of its round
            minus the value now, times the island's part of all work.
        means: Other values of which the mean is taken, times that part.
        counts: What metrics have counted since they were added up.
    """

    trained: list[jax.Array]
    means: list[jax.Array]
    counts: list[jax.Array]

    def cut(self, totals: Arrays) -> Sent:
        """Returns the sums in the same groups."""
        first, second = len(self.trained), len(self.trained) + len(self.means)
        return Sent(list(totals[:first]), list(totals[first:second]), list(totals[second:]))

    @property
    def arrays(self) -> list[jax.Array]:
        """All of them."""
        return [*self.trained, *self.means, *self.counts]


@functools.partial(jax.jit, static_argnames="compressed")
def weighted(
    trained: tuple[Arrays, Arrays, Arrays],
    means: tuple[Arrays, Arrays],
    counts: tuple[Arrays, Arrays],
    compressed: bool,
) -> Sent:
    """Returns what an island sends.

    Args:
        trained: Values at the start of their round, values now, and for each this island's part of the work.
        means: Values now, and parts.
        counts: Counts now, and counts when they were last added up.
        compressed: Whether changes of trained variables travel as bfloat16.
    """
    moved = [(old - new) * part.astype(new.dtype) for old, new, part in zip(*trained, strict=True)]
    return Sent(
        [_as_bfloat16(each) if compressed else each for each in moved],
        [value * part.astype(value.dtype) for value, part in zip(*means, strict=True)],
        [now - before for now, before in zip(*counts, strict=True)],
    )


def _as_bfloat16(value: jax.Array) -> jax.Array:
    wide = jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize > jnp.dtype(jnp.bfloat16).itemsize
    return value.astype(jnp.bfloat16) if wide else value


def zeros_like(arrays: Arrays) -> list[jax.Array]:
    """Returns what a newcomer sends."""
    return [jnp.zeros(array.shape, array.dtype, device=array.sharding) for array in arrays]


@jax.jit
def copied(arrays: Arrays) -> list[jax.Array]:
    """Returns copies: the programs of later steps overwrite the values themselves."""
    return [jnp.copy(array) for array in arrays]


@jax.jit
def added(bases: Arrays, sums: Arrays) -> list[jax.Array]:
    """Returns counts with what all islands have added."""
    return [base + each for base, each in zip(bases, sums, strict=True)]
