"""Types of values: where JAX versions differ, and facts about a value for which JAX has no public name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeGuard

import jax
import numpy as np
from jax._src import core as jax_core, dtypes as jax_dtypes, lax as jax_lax
from jax.sharding import Sharding
from jaxlib import xla_client


def varying_axes(x: object) -> frozenset[str]:
    """Returns the manual mesh axes over which `x` may differ ("varying manual axes"); none for a Python number."""
    return axes_of_type(jax.typeof(x))


def axes_of_type(aval: jax.core.AbstractValue) -> frozenset[str]:
    """Returns the manual mesh axes over which values of a type may differ."""
    # Without either name: a pass over the program, as in `program/ir/divergence.py`.
    axes = getattr(aval, "vma", None)
    if axes is None:
        # JAX 0.10; types of effects have neither.
        axes = aval.manual_axis_type.varying if hasattr(aval, "manual_axis_type") else ()
    return frozenset(axes)


def meshless(aval: jax.core.AbstractValue) -> jax.core.AbstractValue:
    """Returns a type without the mesh that JAX has noted in it; its values do not vary over that."""
    return aval.update(sharding=None) if getattr(aval, "sharding", None) is not None else aval


def vary(x: jax.Array, axis_name: str) -> jax.Array:
    """Retypes `x` as varying over `axis_name`; free at run time. A value that varies already is returned as it is."""
    if axis_name in varying_axes(x):
        return x
    return jax.lax.pcast(x, (axis_name,), to="varying")


def lax_modules() -> list[Any]:
    """Returns the modules that have the functions of `jax.lax`: that one, and those that JAX's own code uses."""
    # Without the other names: solvers of JAX's (`gmres`, `bicgstab`) and samplers (`multinomial`) do not find what
    # replaces a function.
    others = [jax_lax, getattr(jax_lax, "control_flow", None)]
    return [jax.lax, *(each for each in others if hasattr(each, "while_loop"))]


def strongly_typed(x: jax.typing.ArrayLike, dtype: jax.typing.DTypeLike | None = None) -> jax.Array:
    """Returns `x` as an array whose dtype is its own, not "weak" like that of a Python number."""
    # A program is specialised to weakness too, so state that starts weak would be compiled for twice. A NumPy array is
    # copied: on a CPU JAX may go on using its memory, which its owner may change.
    array = x if isinstance(x, jax.Array) and dtype is None else jax.numpy.array(x, dtype, copy=type(x) is np.ndarray)
    return jax.lax.convert_element_type(array, array.dtype) if is_weak(array) else array


def refuse_as_argument(kind: type, error_of: Callable[[Any], Exception]) -> None:
    """Makes JAX's functions raise `error_of(value)` when they get an object of a class, or a subclass, for an array."""
    # JAX would say that `__jax_array__` is not supported there, and not what to do instead; without the names, it does.
    # A `TypeError` would be hidden by JAX.

    def refuse(value: Any) -> NoReturn:
        raise error_of(value)

    jax_core.pytype_aval_mappings[kind] = refuse
    register = getattr(jax_dtypes, "register_canonicalize_value_handler", None)
    if register is not None:
        register(kind, refuse)


def is_weak(array: object) -> bool:
    """Returns whether an array's dtype is weak; those of random keys never are."""
    return getattr(array, "weak_type", False)


def is_random_key(value: object) -> TypeGuard[jax.Array]:
    """Returns whether `value` is an array of JAX random keys, which NumPy and files know only as `key_data`."""
    return isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)


_put_parts = xla_client.batched_device_put


def array_of_parts(
    aval: jax.core.ShapedArray,
    sharding: Sharding,
    devices: Sequence[jax.Device],
    parts: Sequence[jax.Array | np.ndarray],
    copies: bool = False,
) -> jax.Array:
    """Returns an array of a type and a sharding, of the part of each device, or of a copy of it, made by the return.

    Without copies a part that is on its device stays where it is; so does one of NumPy's, if it is aligned, on a CPU.
    """
    # Without the name: `jax.device_put` and `jax.make_array_from_single_device_arrays`, which take ten times as long.
    made: jax.Array = _put_parts(aval, sharding, parts, devices, True, copies)
    return made
