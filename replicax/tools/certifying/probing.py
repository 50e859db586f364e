"""`rx.probe`: names a value in a forward pass, for `replicax certify`."""

from __future__ import annotations

from typing import TypeVar

_T = TypeVar("_T")


def probe(name: str, value: _T) -> _T:
    """Names a value in a forward pass, so that `replicax certify` compares it; elsewhere it does nothing.

    Args:
        name: A name; the same one may be given several times in a step.
        value: An array. One whose first dimension is rows of the batch is compared by the sums over these, of its
            entries and of their squares: the rows of all replicas in any order. Any other has to be equal on all
            replicas, or its mean over them is compared.

    Returns:
        The value.

    Example:
        >>> import jax.numpy as jnp
        >>> rx.probe("hidden", jnp.ones(3))
        Array([1., 1., 1.], dtype=float32)
    """
    return value
