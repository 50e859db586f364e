"""The compressions in NumPy: all replicas in one array."""

from __future__ import annotations

import numpy as np


def rounded(numbers: np.ndarray) -> np.ndarray:
    """Returns numbers, shape (..., block), as a receiver reads them: 8 bits each, and a scale for the block."""
    scales = np.max(np.abs(numbers), axis=-1, keepdims=True) / np.float32(127)
    steps = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    return np.round(numbers * steps) * scales


def int8_step(gradients: np.ndarray, errors: np.ndarray, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sum that all replicas get, shape (size,), and the new errors, shape (replicas, size)."""
    replicas, size = gradients.shape
    length = -(-size // replicas)
    blocks = -(-length // block_size)
    block = -(-length // blocks)
    padded = np.zeros((replicas, replicas * blocks * block), "float32")  # As it computes: a half is rounded alike.
    padded[:, :size] = gradients + errors
    parts = padded.reshape(replicas, replicas, blocks, block)  # of which replica, for which replica
    sent = rounded(parts)
    left_out = parts - sent
    totals = np.zeros((replicas, blocks, block), "float32")
    for owner in range(replicas):
        total = parts[owner, owner] + sum(sent[other, owner] for other in range(replicas) if other != owner)
        totals[owner] = rounded(total)
        left_out[owner, owner] = total - totals[owner]
    return totals.reshape(-1)[:size], left_out.reshape(replicas, -1)[:, :size]


def power_sgd_step(
    gradients: np.ndarray, errors: np.ndarray, q: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the approximate sum, shape (n, m), the new errors, shape (replicas, n, m), and the new q, (m, rank)."""
    matrices = gradients + errors
    p = _orthonormal(np.sum(matrices @ q, axis=0))
    own = np.einsum("rnm,nk->rmk", matrices, p)
    q = own.sum(axis=0)
    return p @ q.T, matrices - np.einsum("nk,rmk->rnm", p, own), q


def _orthonormal(matrix: np.ndarray) -> np.ndarray:
    """Gram and Schmidt's way, column by column."""
    columns: list[np.ndarray] = []
    for column in matrix.T:
        for other in columns:
            column = column - other * (other @ column)
        columns.append(column / np.linalg.norm(column))
    return np.stack(columns, axis=1)
