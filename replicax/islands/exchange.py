"""The arrays of one synchronization: what an island sends, and what it makes of the sums."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax.contracts.reduce_op import in_which_means_add_up

Arrays = Sequence[jax.Array]


class Part(NamedTuple):
    """The part that an island has in a mean."""

    share: np.float64  # its work, divided by that of all
    work: np.float64  # its work, divided by that of the island that has done most
    of_all: np.float64  # the sum of `work` over the islands

    @classmethod
    def of(cls, works: Sequence[float], own: float) -> Part:
        """Returns the part of an island that has done `own` of the islands' works."""
        most = max(works)
        return cls(*map(np.float64, (own / sum(works), own / most, sum(each / most for each in works))))


class Sent(NamedTuple):
    """The arrays that islands add up, in the order in which they travel."""

    # How far the variables have moved *back*, value at the start of the round minus value now, times the share.
    trained: list[jax.Array]
    means: list[jax.Array]  # times this island's work, in a dtype that can hold the sums
    counts: list[jax.Array]  # since they were added up last

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
    """Returns what an island sends."""
    moved = [
        ((old - new).astype(_wide(new)) * part.astype(_wide(new))).astype(new.dtype)
        for old, new, part in zip(*trained, strict=True)
    ]
    # Work is 1 for the island that has done most: so a value that all have alike comes out as it is, however often.
    return Sent(
        [_as_bfloat16(each) if compressed else each for each in moved],
        [value.astype(_wide(value)) * work.astype(_wide(value)) for value, work in zip(*means, strict=True)],
        [now - before for now, before in zip(*counts, strict=True)],
    )


@jax.jit
def averaged(sums: Arrays, works: Sequence[jax.typing.ArrayLike], like: Arrays) -> list[jax.Array]:
    """Returns means, in the dtypes of `like`, of sums and of the work that all islands have done."""
    # XLA would multiply by the reciprocal of a scalar, and three thirds of a value would be larger in each exchange.
    divisors = jax.lax.optimization_barrier(
        [jnp.full_like(total, work) for total, work in zip(sums, works, strict=True)]
    )
    means = [total / divisor for total, divisor in zip(sums, divisors, strict=True)]
    return [
        (mean if jnp.issubdtype(old.dtype, jnp.inexact) else jnp.rint(mean)).astype(old.dtype)
        for mean, old in zip(means, like, strict=True)
    ]


def _wide(value: jax.Array) -> jnp.dtype:
    """Returns the dtype in which values are weighted and added up: at least float32."""
    return jnp.promote_types(in_which_means_add_up(value.dtype), jnp.float32)


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
