"""`jax.lax.polynomial` in programs of replicas.

JAX 0.12 computes derivatives of `gelu`, `erf`, `lgamma` and others with it, and forgets what its other operations do:
to retype coefficients that are equal on all replicas where the argument is not (its error asks for an issue).
"""

from __future__ import annotations

from typing import Any

import jax
from jax._src.lax import lax

from replicax.compat.jax import vary, varying_axes


def retype_polynomials() -> None:
    """Lets JAX's polynomials take coefficients that vary less than the argument, in this process."""
    # Nothing to do before JAX 0.12, nor once JAX retypes them itself. Without the name: JAX's error.
    primitive: Any = getattr(lax, "polynomial_p", None)
    if primitive is None:
        return
    bind = primitive.bind

    def bind_alike(*arrays: jax.Array, **parameters: object) -> object:
        axes = frozenset[str]().union(*map(varying_axes, arrays))
        for axis in sorted(axes):
            arrays = tuple(vary(array, axis) for array in arrays)
        return bind(*arrays, **parameters)

    primitive.bind = bind_alike
