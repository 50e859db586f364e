"""The contract of a compression: from each replica's gradients to sums, with a memory that goes from step to step."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

Memory = Mapping[str, jax.Array]
#: Sums arrays over the replicas' axis without any loss; the sums are equal on all replicas.
ExactSum = Callable[[list[jax.Array]], list[jax.Array]]


@dataclasses.dataclass(frozen=True)
class MemoryKind:
    """One array that a compression keeps of a gradient from one step to the next."""

    shape: tuple[int, ...]
    dtype: np.dtype
    per_replica: bool  # whether each replica has one of its own; otherwise all have the same
    initial: Callable[[], np.ndarray]  # returns its first value, the same in all processes


@dataclasses.dataclass(frozen=True)
class Reducing:
    """The circumstances of one sum."""

    axis_name: str  # of the replicas, inside `jax.shard_map`
    num_replicas: int  # at least 2
    bytes_per_pack: int  # as in `CommunicationOptions`
    exact_sum: ExactSum  # of what is not compressed, packed as the cross-device ops pack it


class Compression(abc.ABC):
    """A way to send gradients in fewer bytes, with a memory of what the bytes have left out."""

    @property
    @abc.abstractmethod
    def has_memory(self) -> bool:
        """Whether something is kept from step to step."""

    @abc.abstractmethod
    def compresses(self, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> bool:
        """Returns whether an array of this shape and dtype is compressed; others travel as they are."""

    @abc.abstractmethod
    def memory_of(self, shape: tuple[int, ...], dtype: np.dtype, number: int) -> dict[str, MemoryKind]:
        """Returns what is kept of a gradient that is compressed, by name.

        Args:
            shape: The gradient's shape.
            dtype: The dtype in which it is compressed, see `computing_dtype`.
            number: A number of its own among all that have a memory.
        """

    @abc.abstractmethod
    def sums(
        self, values: Sequence[jax.Array], memory: Sequence[Memory], how: Reducing
    ) -> tuple[list[jax.Array], list[Memory]]:
        """Sums arrays over the replicas.

        Args:
            values: This replica's arrays, all of which are compressed, varying over the axis; of dtypes that
                `computing_dtype` returns.
            memory: What is kept of each: arrays by the names of `memory_of`, or nothing.
            how: How they travel.

        Returns:
            The sums, bit by bit equal on all replicas and typed as equal, and the new memory, by the same names.
        """


def computing_dtype(dtype: jax.typing.DTypeLike) -> np.dtype:
    """Returns the dtype in which arrays of `dtype` are compressed: its own, float32 for narrower floats."""
    return jnp.promote_types(dtype, jnp.float32)
