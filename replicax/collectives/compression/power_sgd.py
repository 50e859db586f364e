"""Gradients as products of two thin matrices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checks import checked_int, is_real
from replicax.collectives.compression.contract import (
    Compression,
    Memory,
    MemoryKind,
    Reducing,
)
from replicax.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class PowerSGD(Compression):
    """Sends a matrix of shape `(n, m)` as two of rank `r`: `(n + m) * r` numbers instead of `n * m`.

    One step of a power iteration finds them. From the matrix `q` of the step before, the replicas sum
    `p = gradient @ q`, make its columns orthonormal, and sum `q = gradient.T @ p`; every replica then has `p @ q.T`.
    Each replica adds the rest to its next gradient (error feedback). `q` follows the gradients' largest
    directions from step to step.

    A gradient of more dimensions counts as a matrix: its dimensions are divided in two groups, as evenly as they allow
    (a convolution's `(3, 3, 64, 128)` as `(576, 128)`). Vectors, and matrices that would not get smaller, travel as
    they are.

    Args:
        rank: The rank `r` of the product. A few (1 to 8) are enough where the batch is large.
        min_compression_rate: A gradient is compressed only where that makes it smaller by at least this factor.
        error_feedback: Whether what was left out is kept for the next step: float32 memory of the size of the gradients
            on each replica. Without, training may not converge.
        warm_start: Whether `q` is kept; otherwise each step begins with the same random matrix.
        seed: Of the first `q`.

    Raises:
        ArgumentError: An argument has a wrong type or value.

    References:
        T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
        Optimization", 2019 (arXiv:1905.13727), algorithms 1 and 2.

    Example:
        >>> PowerSGD(rank=2)
        PowerSGD(rank=2, min_compression_rate=2.0, error_feedback=True, warm_start=True, seed=0)
    """

    rank: int = 4
    min_compression_rate: float = 2.0
    error_feedback: bool = True
    warm_start: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        checked_int("rank", self.rank, least=1)
        checked_int("seed", self.seed)
        rate = self.min_compression_rate
        if not is_real(rate) or not math.isfinite(rate) or rate < 1:
            raise ArgumentError(f"`min_compression_rate` must be a number of at least 1, got {rate!r:.100}.")
        for name in ("error_feedback", "warm_start"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"`{name}` must be True or False, got {getattr(self, name)!r:.100}.")

    @property
    def has_memory(self) -> bool:
        return self.error_feedback or self.warm_start

    def compresses(self, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> bool:
        """Returns whether an array of this shape and dtype travels as a product."""
        rows, columns = as_matrix(shape)
        smaller = (rows + columns) * self.rank * self.min_compression_rate <= rows * columns
        return bool(jnp.issubdtype(dtype, jnp.inexact)) and rows * columns > 0 and smaller

    def memory_of(self, shape: tuple[int, ...], dtype: np.dtype, number: int) -> dict[str, MemoryKind]:
        kinds = {}
        if self.error_feedback:
            kinds["error"] = MemoryKind(shape, dtype, True, lambda: np.zeros(shape, dtype))
        if self.warm_start:
            rows = as_matrix(shape)[1]
            kinds["q"] = MemoryKind((rows, self.rank), dtype, False, lambda: self._first_q(rows, number).astype(dtype))
        return kinds

    def _first_q(self, rows: int, number: int) -> np.ndarray:
        return np.random.default_rng([self.seed, number]).standard_normal((rows, self.rank))

    def sums(
        self, values: Sequence[jax.Array], memory: Sequence[Memory], how: Reducing
    ) -> tuple[list[jax.Array], list[Memory]]:
        matrices = [
            (value + kept["error"] if "error" in kept else value).reshape(as_matrix(value.shape))
            for value, kept in zip(values, memory, strict=True)
        ]
        old_qs = [
            kept["q"] if "q" in kept else jnp.asarray(self._first_q(matrix.shape[1], i), matrix.dtype)
            for i, (matrix, kept) in enumerate(zip(matrices, memory, strict=True))
        ]
        ps = how.exact_sum([matrix @ q for matrix, q in zip(matrices, old_qs, strict=True)])
        ps = [jnp.linalg.qr(p)[0] for p in ps]
        own_qs = [matrix.conj().T @ p for matrix, p in zip(matrices, ps, strict=True)]
        qs = how.exact_sum(own_qs)
        sums, new = [], list[Memory]()
        for value, matrix, p, own_q, q, kept in zip(values, matrices, ps, own_qs, qs, memory, strict=True):
            sums.append((p @ q.conj().T).reshape(value.shape))
            found = {"error": (matrix - p @ own_q.conj().T).reshape(value.shape), "q": q}
            new.append({name: found[name] for name in kept})
        return sums, new


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Returns rows and columns of an array as a matrix: its dimensions in two groups, as even as they can be.

    Example:
        >>> as_matrix((3, 3, 64, 128))
        (576, 128)
    """
    cuts = [(math.prod(shape[:i]), math.prod(shape[i:])) for i in range(1, len(shape))]
    return min(cuts, key=sum) if cuts else (math.prod(shape), 1)
