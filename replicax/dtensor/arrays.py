"""Arrays in a layout: the one way onto a mesh, for plain arrays, DTensors and traced values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import jax
import numpy as np

from replicax.compat.jax_tracing import constants_are_traced, primal_of
from replicax.contracts.variable_access import VariableLike
from replicax.data.batch_placement import owned_copy
from replicax.dtensor.layout import MATCH, Layout
from replicax.errors import ArgumentError, LayoutError, TensorError

#: Arguments of the functions on tensors: an array, traced or not, numbers, nested lists of numbers, or a variable.
TensorLike: TypeAlias = "jax.typing.ArrayLike | Sequence[TensorLike] | VariableLike"


def checked_layout(layout: object) -> Layout:
    """Returns `layout` if it is one."""
    if not isinstance(layout, Layout):
        raise ArgumentError(f"Expected an rx.dtensor.Layout, got {type(layout).__name__}: {layout!r:.100}.")
    return layout


def is_traced(value: object) -> bool:
    """Returns whether `value` stands for an array in a function that JAX is tracing."""
    return isinstance(value, jax.core.Tracer)


def laid_out(value: TensorLike, layout: Layout, copy: bool = False) -> jax.Array:
    """Returns `value` in a layout, where `MATCH` keeps a dimension as it is; `copy` shares no buffer with `value`."""
    value = as_array(value)
    if is_traced(value) or constants_are_traced():
        layout.check_rank(value.shape)
        present = primal_of(value)
        if isinstance(present, jax.Array) and not is_traced(present) and layout_of(present) is not None:
            # It changes nothing here, but its gradient is laid out like the input.
            value = jax.lax.with_sharding_constraint(value, present.sharding)
        return jax.lax.with_sharding_constraint(value, layout.to_sharding())
    layout = resolved(layout, value)
    layout.check_shape(value.shape)
    if isinstance(value, np.ndarray):
        value = owned_copy(value)  # so that the result shares no memory with the host's
    elif copy:
        value = jax.numpy.copy(value)  # device_put returns the same buffers if they are in place already.
    return jax.device_put(value, layout.to_sharding())


def as_array(value: TensorLike) -> jax.Array | np.ndarray:
    """Returns a value as a JAX array if it is one or holds one, otherwise as a NumPy array."""
    if not isinstance(value, jax.Array) and hasattr(value, "__jax_array__"):  # A variable, of replicax or Keras.
        value = value.__jax_array__()
    if isinstance(value, jax.Array) or (isinstance(value, np.ndarray) and value.dtype.kind in "biufc"):
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if not jax.numpy.isdtype(array.dtype, ("bool", "numeric")):
        raise TensorError(f"Expected an array, a variable or numbers, got {type(value).__name__}: {value!r:.100}.")
    python_numbers = not isinstance(value, (np.ndarray, np.generic))
    if python_numbers and array.dtype.kind in "if":  # Python numbers get JAX's default dtypes.
        array = array.astype(jax.dtypes.canonicalize_dtype(float if array.dtype.kind == "f" else int))
    return array


def layout_of(value: jax.Array | jax.ShapeDtypeStruct) -> Layout | None:
    """Returns the layout of an array (or its description) that lives on a mesh, None for any other."""
    sharding = value.sharding
    if not isinstance(sharding, jax.sharding.NamedSharding) or not isinstance(sharding.mesh, jax.sharding.Mesh):
        return None
    return Layout.from_sharding(sharding, value.ndim)


def resolved(layout: Layout, value: jax.Array | np.ndarray) -> Layout:
    """Returns `layout` with each `MATCH` replaced by how `value` is sharded there now."""
    if MATCH not in layout.sharding_specs:
        return layout
    layout.check_rank(value.shape)
    present = layout_of(value) if isinstance(value, jax.Array) else None
    present = Layout.replicated(layout.mesh, layout.rank) if present is None else present
    if present.mesh != layout.mesh:
        raise LayoutError(f"{layout!r} matches the present layout, which is on another mesh: {present!r}.")
    specs = [
        now if wanted == MATCH else wanted
        for wanted, now in zip(layout.sharding_specs, present.sharding_specs, strict=True)
    ]
    return Layout(specs, layout.mesh)
