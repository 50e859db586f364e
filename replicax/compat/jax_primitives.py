"""Primitives of our own: a promise that a value is equal over an axis, a stand-in for an unknown value, mapped axes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from replicax.compat.jax import vary

# JAX proves equality over an axis only for its own collectives (`psum`, ...). An algorithm built from `ppermute` ends
# with equal values too, but no rule can see that: this identity states it. With `proven=False` it only retypes.
_assert_equal_p = jex_core.Primitive("replicax_assert_equal_over_axis")


@_assert_equal_p.def_impl
def _assert_equal_impl(x: jax.Array, *, axis_name: str, proven: bool) -> jax.Array:
    del axis_name, proven
    return x


@_assert_equal_p.def_abstract_eval
def _assert_equal_abstract(aval: jax.core.ShapedArray, *, axis_name: str, proven: bool) -> jax.core.ShapedArray:
    del proven
    if hasattr(aval, "vma"):
        return aval.update(vma=aval.vma - {axis_name})
    axis_type = aval.manual_axis_type
    return aval.update(manual_axis_type=axis_type.update(varying=axis_type.varying - {axis_name}))


mlir.register_lowering(_assert_equal_p, lambda context, x, *, axis_name, proven: [x])
batching.defvectorized(_assert_equal_p)


def _assert_equal_transpose(cotangent: jax.Array, x: object, *, axis_name: str, proven: bool) -> list[jax.Array]:
    del proven
    # One value was made of equal copies: each device's copy has an equal share in it.
    return [vary(cotangent / jax.lax.axis_size(axis_name), axis_name)]


ad.deflinear2(_assert_equal_p, _assert_equal_transpose)


def assert_equal_over_axis(x: jax.Array, axis_name: str) -> jax.Array:
    """Retypes `x` as equal over an axis, unchecked: a collective must have made it bitwise equal on its devices."""
    return _assert_equal_p.bind(x, axis_name=axis_name, proven=True)


def taken_as_equal_over_axis(x: jax.Array, axis_name: str) -> jax.Array:
    """Retypes `x` as equal over `axis_name`; `program/ir/divergence.py` looks through it."""
    return _assert_equal_p.bind(x, axis_name=axis_name, proven=False)


# A placeholder for a value that is not known yet. It has no lowering: a program in which it is left means nothing.
_stand_in_p = jex_core.Primitive("replicax_stand_in")


@_stand_in_p.def_abstract_eval
def _stand_in_abstract(*, aval: jax.core.ShapedArray) -> jax.core.ShapedArray:
    return aval


def stand_in(shape: Sequence[int], dtype: jax.typing.DTypeLike) -> jax.Array:
    """Returns a traced array of a shape and dtype, in the innermost trace, on the mesh of the place."""
    mesh = jax.sharding.get_abstract_mesh()
    sharding = None if mesh.empty else NamedSharding(mesh, PartitionSpec(*[None] * len(shape)))
    return _stand_in_p.bind(aval=jax.core.ShapedArray(tuple(shape), dtype, sharding=sharding))


# Collectives over an axis of `jax.vmap`. JAX refuses its own where types say what varies over a mesh, since the axis is
# none of that. These two, each the transpose of the other, leave the types alone, and `vmap` leaves nothing of them.
_rows_p = jex_core.Primitive("replicax_rows_of_mapped_axis")
_own_sum_p = jex_core.Primitive("replicax_own_sum_over_mapped_axis")


@_rows_p.def_abstract_eval
def _rows_abstract(aval: jax.core.ShapedArray, *, axis_name: Hashable, size: int) -> jax.core.ShapedArray:
    del axis_name
    return aval.update(shape=(size, *aval.shape))


@_own_sum_p.def_abstract_eval
def _own_sum_abstract(aval: jax.core.ShapedArray, *, axis_name: Hashable, size: int) -> jax.core.ShapedArray:
    del axis_name, size
    return aval.update(shape=aval.shape[1:])


def _batch_rows(axis: Any, values: Any, dims: Any, *, axis_name: Hashable, size: int) -> tuple[jax.Array, int | None]:
    [x], [dim] = values, dims
    if axis.name != axis_name:
        return _rows_p.bind(x, axis_name=axis_name, size=size), None if dim is None else dim + 1
    return (jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)), None


def _batch_sum(axis: Any, values: Any, dims: Any, *, axis_name: Hashable, size: int) -> tuple[jax.Array, int | None]:
    [x], [dim] = values, dims
    if axis.name == axis_name:
        return (x * size if dim is None else jnp.sum(x, axis=dim, dtype=x.dtype)), 0
    if dim is not None:
        x = jnp.moveaxis(x, dim, 1)  # The first dimension is the one that is summed.
    return _own_sum_p.bind(x, axis_name=axis_name, size=size), None if dim is None else 0


batching.fancy_primitive_batchers[_rows_p] = _batch_rows
batching.fancy_primitive_batchers[_own_sum_p] = _batch_sum
ad.deflinear2(_rows_p, lambda cotangent, x, **params: [_own_sum_p.bind(cotangent, **params)])
ad.deflinear2(_own_sum_p, lambda cotangent, x, **params: [_rows_p.bind(cotangent, **params)])


def rows_of_mapped_axis(x: jax.Array, axis_name: Hashable) -> jax.Array:
    """Returns what `x` is in all places of an axis of `jax.vmap`, in a new first dimension; NameError without it."""
    return _rows_p.bind(x, axis_name=axis_name, size=jax.lax.axis_size(axis_name))
