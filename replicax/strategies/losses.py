"""Loss helpers that make per-replica losses add up to the global one."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.checks import checked_array, checked_int
from replicax.errors import ArgumentError, ContextError
from replicax.program.hints.advice import advise
from replicax.program.hints.gradient_scale import share_of_sum
from replicax.strategies.current_strategy import get_replica_context, in_cross_replica_context
from replicax.typing import Leaf, PyTree


def compute_average_loss(
    per_example_loss: Leaf,
    sample_weight: Leaf | None = None,
    global_batch_size: int | None = None,
) -> jax.Array:
    """Sums per-example losses and divides by the *global* batch size.

    Each replica returns its share of the global mean, so the sum over replicas (of the losses, and of their
    gradients) is the mean over the whole batch.

    Args:
        per_example_loss: Shape `(rows, ...)`, float. All entries are summed, those of time steps too, and divided by
            the rows alone: average over the steps first.
        sample_weight: Weights that broadcast against the losses; they do not change the divisor. A tensor of shape
            `(rows,)` weights whole rows.
        global_batch_size: Rows in the global batch, at least 0. By default this replica's rows times the number of
            replicas in the running step; in a micro-batch of `rx.accumulate_gradients` those of all micro-batches. A
            size of 0 gives 0. One that is smaller than that is warned of, once; where the step has no distributed
            batch, so that every replica has all rows, it is an error.

    Returns:
        Scalar of the losses' dtype.

    Raises:
        ArgumentError: Scalar losses, weights that do not fit them, a size that is no non-negative integer, or one that
            is smaller than the rows of a step whose batch was not distributed.
        ContextError: Called in cross-replica context without a size.

    Example:
        >>> compute_average_loss(jnp.array([1.0, 2.0, 3.0]), global_batch_size=4)
        Array(1.5, dtype=float32)
    """
    losses = checked_array("per_example_loss", per_example_loss)
    if losses.ndim == 0:
        raise ArgumentError("compute_average_loss needs one loss per example, got a scalar. Use reduction=None/'none'.")
    if not jnp.issubdtype(losses.dtype, jnp.inexact):
        losses = losses.astype(float)
    if sample_weight is not None:
        losses = losses * _aligned(checked_array("sample_weight", sample_weight).astype(losses.dtype), losses.shape)
    size = _global_rows(losses.shape[0]) if global_batch_size is None else _checked_size(global_batch_size)
    if isinstance(size, int):
        _advise_of_size(size, losses.shape[0])
    total = jnp.sum(losses)
    if isinstance(size, jax.Array):
        mean = total / jnp.where(size == 0, 1, size).astype(total.dtype)
        return share_of_sum(jnp.where(size == 0, jnp.zeros_like(total), mean))
    return share_of_sum(total / size if size else jnp.zeros_like(total))


def scale_regularization_loss(regularization_loss: PyTree) -> jax.Array:
    """Sums a regularization loss and divides it by the number of replicas, each of which adds it once.

    The replicas' shares, and their gradients, add up to the penalty. In a micro-batch of `rx.accumulate_gradients` it
    is that micro-batch's share, too.

    Raises:
        ContextError: Called in cross-replica context.

    Example:
        >>> scale_regularization_loss([1.0, 2.0])
        Array(3., dtype=float32)
    """
    if in_cross_replica_context():
        raise ContextError(
            "scale_regularization_loss was called in cross-replica context; call it inside strategy.run."
        )
    total = sum(
        jnp.sum(checked_array("regularization_loss", part)) for part in jax.tree_util.tree_leaves(regularization_loss)
    )
    return share_of_sum(jnp.asarray(total) * float(context.current().part_of_rows) / _replicas())


def _global_rows(rows: int) -> int:
    if in_cross_replica_context():
        raise ContextError(
            "In cross-replica context the global batch size is unknown: pass global_batch_size to "
            "compute_average_loss, or call it inside strategy.run."
        )
    return round(rows / context.current().part_of_rows) * _replicas()


def _advise_of_size(size: int, rows: int) -> None:
    """Says so if a step has more rows than the global batch is said to have. (Steps of an accumulation have fewer.)"""
    replica = get_replica_context()
    if replica is not None and not replica.batch_rows and 0 < size < rows * replica.num_replicas_in_sync:
        raise ArgumentError(
            f"compute_average_loss got losses of {rows} rows on each of {replica.num_replicas_in_sync} replicas and "
            f"global_batch_size={size}, and the step has no distributed batch: every replica would compute "
            "all rows, and gradients would be too large. Pass batches of strategy.distribute_dataset(...)."
        )
    if replica is None or rows not in getattr(replica, "batch_rows", ()):
        return  # Of pieces of rows, such as tokens, there may be more.
    replicas = replica.num_replicas_in_sync
    if 0 < size < rows * replicas:
        advise(
            replica.strategy,
            f"a batch size of {size}",
            f"compute_average_loss got global_batch_size={size}, but this step has {rows} rows on each of {replicas} "
            f"replicas, {rows * replicas} together: the loss and its gradients are {rows * replicas / size:g} times "
            "too large. Pass the number of rows of the whole batch, of all replicas together; or leave it out.",
        )


def _replicas() -> int:
    replica = get_replica_context()
    return 1 if replica is None else replica.num_replicas_in_sync


def _checked_size(size: object) -> int | jax.Array:
    if isinstance(size, jax.Array) and size.ndim == 0 and jnp.issubdtype(size.dtype, jnp.integer):
        return size
    return checked_int("global_batch_size", size)


def _aligned(weight: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Adds or removes trailing dimensions of one, so that weights of rows meet losses of shape `(rows, ...)`."""
    if weight.ndim == len(shape) + 1 and weight.shape[-1] == 1:
        weight = weight[..., 0]
    if 0 < weight.ndim < len(shape):
        weight = weight.reshape(weight.shape + (1,) * (len(shape) - weight.ndim))
    if weight.ndim > len(shape) or any(w not in (1, n) for w, n in zip(weight.shape, shape, strict=False)):
        raise ArgumentError(f"sample_weight of shape {weight.shape} does not fit losses of shape {shape}.")
    return weight
