"""`jax.lax.polynomial` in programs of replicas.

JAX 0.12 computes derivatives of `gelu`, `erf`, `lgamma` and others with it, and forgets what its other operations do:
to retype coefficients that are equal on all replicas where the argument is not (its error asks for an issue).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax._src.lax import lax

from replicax.compat.jax import vary, varying_axes
from replicax.compat.replacing import Name


def retyped_polynomials() -> list[Name]:
    """Returns what lets JAX's polynomials take coefficients that vary less than the argument."""
    # Nothing to do before JAX 0.12, nor once JAX retypes them itself. Without the name: JAX's error.
    primitive: Any = getattr(lax, "polynomial_p", None)
    return [] if primitive is None else [Name(primitive, "bind", _bind_alike)]


def _bind_alike(bind: Any) -> Any:
    @functools.wraps(bind)
    def bind_alike(*arrays: jax.Array, **parameters: object) -> object:
        axes = frozenset[str]().union(*map(varying_axes, arrays))
        for axis in sorted(axes):
            arrays = tuple(vary(array, axis) for array in arrays)
        return bind(*arrays, **parameters)

    return bind_alike
