"""`jax.lax.custom_linear_solve` in programs of replicas.

JAX traces its functions with constants as they are (weights that all replicas have alike, say), and types these as
varying afterwards, where the right-hand side varies. The functions no longer fit their operands then: JAX refuses to
differentiate or to compile them.
"""

from __future__ import annotations

import contextlib
import contextvars
import types
from collections.abc import Iterator
from typing import Any

from jax._src import core
from jax._src.lax.control_flow import solves

from replicax.compat.replacing import Name

#: How JAX's versions call what types all of some values as varying: first 0.10.0's name.
RETYPING = ("standard_insert_pvary", "auto_insert_reshard")

_kept: contextvars.ContextVar[bool] = contextvars.ContextVar("constants_keep_their_types", default=False)


def kept_types_of_constants() -> list[Name]:
    """Returns what makes `constants_keep_their_types` work. Without the names: JAX's errors about types."""
    return [Name(solves, "core", _without_retyping)] if getattr(solves, "core", None) is core else []


def _without_retyping(own: Any) -> Any:
    """Returns the module as its user sees it, without the functions that retype values."""

    def as_they_are(retyped: Any) -> Any:
        return lambda *values: values if _kept.get() else retyped(*values)

    seen: Any = types.ModuleType(own.__name__)
    seen.__getattr__ = lambda name: getattr(own, name)
    for name in RETYPING:
        if hasattr(own, name):
            setattr(seen, name, as_they_are(getattr(own, name)))
    return seen


@contextlib.contextmanager
def constants_keep_their_types() -> Iterator[None]:
    """Lets `custom_linear_solve` take operands as they are: parts of the right-hand side vary all, or none does."""
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)
