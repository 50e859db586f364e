"""Combining the rows of several ids: sum, mean, and the sum divided by the square root of the number."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from replicax.errors import ArgumentError


def combined(rows: jax.Array, weights: jax.Array | None, combiner: str, feature: str) -> jax.Array:
    """Combines looked-up rows as `keras_rs.layers.EmbedReduce` does.

    Args:
        rows: Shape `(batch, columns)` for one id in each row of the batch, which is not combined, or `(..., ids,
            columns)`.
        weights: One for each id, or for each row of the batch; None stands for ones. An id of weight zero is padding.
        combiner: `"sum"`: the weighted sum. `"mean"`: divided by the sum of the weights. `"sqrtn"`: divided by the
            square root of the sum of their squares. Where that is zero, so is the result.
        feature: What messages call it.

    Returns:
        Shape `(batch, columns)`, or `(..., columns)`.

    Raises:
        ArgumentError: The weights have another shape.
    """
    if weights is not None and weights.shape != rows.shape[: weights.ndim]:
        raise ArgumentError(
            f"The weights of feature {feature!r} have shape {weights.shape}, and its ids {rows.shape[:-1]}: give each "
            "id one."
        )
    if rows.ndim <= 2:
        return rows if weights is None or combiner != "sum" else rows * _beside(weights, rows)
    dtype = rows.dtype if weights is None else jnp.result_type(rows, weights)
    each = jnp.ones(rows.shape[:-1], dtype) if weights is None else weights.astype(dtype)
    each = _beside(each, rows)
    summed = (rows * each).sum(axis=-2)
    if combiner == "sum":
        return summed
    divisor = each.sum(axis=-2) if combiner == "mean" else jnp.sqrt(jnp.square(each).sum(axis=-2))
    is_zero = divisor == 0
    return jnp.where(is_zero, 0, summed / jnp.where(is_zero, 1, divisor))


def _beside(weights: jax.Array, rows: jax.Array) -> jax.Array:
    return weights.reshape(*weights.shape, *[1] * (rows.ndim - weights.ndim))
