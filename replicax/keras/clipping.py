"""Gradients clipped by their norm in a training loop, as TensorFlow's functions of the same names do."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from replicax.checks import checked_array, explained
from replicax.errors import ArgumentError
from replicax.typing import Leaf


@explained
def clip_by_global_norm(
    t_list: Sequence[Leaf | None], clip_norm: Leaf | float, use_norm: Leaf | None = None
) -> tuple[list[jax.Array | None], jax.Array]:
    """Scales tensors together so that their global norm is at most `clip_norm`: `tf.clip_by_global_norm`.

    In `strategy.run` it clips what this replica has. The optimizer's `global_clipnorm=` clips the sum over the
    replicas, which is another update on several of them.

    Args:
        t_list: Tensors of any shapes, float; None where a variable has no gradient, and there the result has None.
        clip_norm: Scalar, positive.
        use_norm: Scalar, the global norm where it is known already.

    Returns:
        The tensors, multiplied by `clip_norm / max(norm, clip_norm)`, and the global norm, a scalar. If the norm is
        infinite or NaN, all tensors are NaN.

    Raises:
        ArgumentError: `t_list` is a tensor, and no list of them.

    Example:
        >>> clip_by_global_norm([jnp.array([3.0]), None, jnp.array([4.0])], 1.0)
        ([Array([0.6], dtype=float32), None, Array([0.8], dtype=float32)], Array(5., dtype=float32))
    """
    norm = global_norm(t_list) if use_norm is None else checked_array("use_norm", use_norm)
    limit = checked_array("clip_norm", clip_norm).astype(norm.dtype)
    scale = limit * jnp.minimum(1 / norm, 1 / limit)
    scale = jnp.where(jnp.isfinite(norm), scale, jnp.nan)
    tensors = [None if each is None else jnp.asarray(each) for each in t_list]
    return [None if each is None else each * scale.astype(each.dtype) for each in tensors], norm


@explained
def global_norm(t_list: Sequence[Leaf | None]) -> jax.Array:
    """Returns the root of the sum of the squares of all tensors, a scalar: `tf.linalg.global_norm`.

    Args:
        t_list: Tensors of any shapes, float. None is left out.

    Raises:
        ArgumentError: `t_list` is a tensor, and no list of them.

    Example:
        >>> global_norm([jnp.array([3.0]), None, jnp.array([4.0])])
        Array(5., dtype=float32)
    """
    if hasattr(t_list, "shape"):
        raise ArgumentError(f"A global norm is that of a list of tensors, not of one tensor, of shape {t_list.shape}.")
    squares = [jnp.sum(jnp.square(checked_array("t_list", each))) for each in t_list if each is not None]
    return jnp.sqrt(sum(squares, start=jnp.zeros((), squares[0].dtype if squares else None)))


@explained
def clip_by_norm(t: Leaf, clip_norm: Leaf | float, axes: int | Sequence[int] | None = None) -> jax.Array:
    """Scales a tensor so that its norm is at most `clip_norm`: `tf.clip_by_norm`.

    Args:
        t: Any shape, float.
        clip_norm: Scalar, or what broadcasts with the norms.
        axes: Along which axes the norm is taken; along all of them by default.

    Example:
        >>> clip_by_norm(jnp.array([3.0, 4.0]), 1.0)
        Array([0.6, 0.8], dtype=float32)
    """
    values, clip_norm = checked_array("t", t), checked_array("clip_norm", clip_norm)
    along = axes if axes is None or isinstance(axes, int) else tuple(axes)
    squares = jnp.sum(values * values, axis=along, keepdims=True)
    # The root has no derivative at zero, and a tensor of zeros is to have one.
    norms = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), squares)
    return values * clip_norm / jnp.maximum(norms, clip_norm)
