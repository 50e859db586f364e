"""`created_rows`: makes an initializer a program by which each server computes its own rows of a large variable."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.export
import jax.numpy as jnp

from replicax.contracts.variable_access import VariableLike, dtype_of, shape_of
from replicax.parameter_server.actors.created_rows import CreatedRows
from replicax.parameter_server.variables.remote import variable_bytes
from replicax.tables.initial_rows import NotByRowsError, initial_rows
from replicax.tables.marks import grows

_MIN_BYTES = 16 << 20  # A smaller value is quicker made here and sent than compiled there.


def created_rows(variable: VariableLike, initializer: Callable[..., jax.Array]) -> CreatedRows | None:
    """Returns the first value of a variable as a program; None if it is small, or computed here."""
    shape, dtype = shape_of(variable), jnp.dtype(dtype_of(variable))
    # A growing table needs the program whatever its size: it computes the first values of ids too.
    is_large = variable_bytes(variable) >= _MIN_BYTES or grows(variable)
    # A seed generator's state changes with each draw, so the draws are made here.
    if not shape or not is_large or not isinstance(getattr(initializer, "seed", 0), int):
        return None
    try:
        rows = initial_rows(initializer, shape, dtype.name)
    except NotByRowsError:
        return None
    return CreatedRows(exported_rows(rows), (0, shape[0]), shape[1:], dtype)


def exported_rows(rows: Callable[[jax.Array, jax.Array], jax.Array]) -> bytes:
    """Returns StableHLO of `(high, low) -> rows` for any number of rows."""
    (count,) = jax.export.symbolic_shape("k")
    numbers = jax.ShapeDtypeStruct((count,), jnp.uint32)
    return bytes(jax.export.export(jax.jit(rows), platforms=["cpu"])(numbers, numbers).serialize())
