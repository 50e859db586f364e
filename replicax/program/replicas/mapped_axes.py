"""JAX's collectives over an axis of `jax.vmap`, in a replica function.

There, JAX types values as varying over the axis of the replicas or not, and its collectives take such axes only.
An axis of `jax.vmap` is all in one place, so such a collective is a sum, a maximum, ... of rows. Where axes of both
kinds are named, the rows come first.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Hashable

import jax
import jax.numpy as jnp
from jax.extend import source_info_util

import replicax.context as context
from replicax.compat.jax_primitives import rows_of_mapped_axis
from replicax.compat.replacing import Name
from replicax.errors import ReduceError
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import PyTree, PyTreeFunction
from replicax.values.equality import difference


def collectives_of_replicas() -> list[Name]:
    """Returns what stands for `psum`, `pmean`, `pmax`, `pmin` and `all_gather` of `jax.lax` in replicas."""
    source_info_util.register_exclusion(__file__)  # A collective stands where the user has written it.
    summed = _over_axes(jax.lax.psum, _sum)
    wraps: dict[str, Callable[[PyTreeFunction], PyTreeFunction]] = {
        "psum": lambda psum: _refusing_equal(_over_axes(psum, _sum)),  # what is equal on all, as `all_reduce` does
        "pmean": lambda pmean: _over_axes(pmean, _mean(summed)),
        "pmax": lambda pmax: _over_axes(pmax, _reduction(jnp.max)),
        "pmin": lambda pmin: _over_axes(pmin, _reduction(jnp.min)),
        "all_gather": _gathered,
    }
    return [Name(jax.lax, name, wrap) for name, wrap in wraps.items()]


def _over_axes(original: PyTreeFunction, over_rows: Callable[..., PyTree]) -> PyTreeFunction:
    @functools.wraps(original)
    def call(x: PyTree, axis_name: Hashable, *args: PyTree, **kwargs: PyTree) -> PyTree:
        mapped, others = _kinds(axis_name)
        if not mapped or args or _asks_for_more(kwargs):
            return original(x, axis_name, *args, **kwargs)
        rest = functools.partial(original, axis_name=others) if others else lambda x: x
        return over_rows(x, mapped, others, rest)

    return call


def _sum(x: PyTree, mapped: tuple[Hashable, ...], others: tuple[Hashable, ...], rest: PyTreeFunction) -> PyTree:
    def total(leaf: jax.typing.ArrayLike) -> jax.Array:
        array = jnp.asarray(leaf)
        if array.dtype == bool:
            array = array.astype(jnp.int32)  # as JAX has it
        for axis in mapped:
            array = jnp.sum(rows_of_mapped_axis(array, axis), axis=0, dtype=array.dtype)
        return array

    # The sum of what is no traced array is a product with a known number, which may be a shape.
    is_known = not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(x))
    size = math.prod(jax.lax.axis_size(axis) for axis in mapped)
    return rest(jax.tree_util.tree_map((lambda leaf: leaf * size) if is_known else total, x))


def _mean(summed: PyTreeFunction) -> Callable[..., PyTree]:
    def mean(x: PyTree, mapped: tuple[Hashable, ...], others: tuple[Hashable, ...], rest: PyTreeFunction) -> PyTree:
        del rest
        size = math.prod(jax.lax.axis_size(axis) for axis in (*mapped, *others))
        return jax.tree_util.tree_map(lambda total: total / size, summed(x, (*mapped, *others)))

    return mean


def _reduction(reduce: Callable[..., jax.Array]) -> Callable[..., PyTree]:
    def reduced(x: PyTree, mapped: tuple[Hashable, ...], others: tuple[Hashable, ...], rest: PyTreeFunction) -> PyTree:
        def of_rows(leaf: jax.typing.ArrayLike) -> jax.Array:
            array = jnp.asarray(leaf)
            for axis in mapped:
                array = reduce(rows_of_mapped_axis(array, axis), axis=0)
            return array

        return rest(jax.tree_util.tree_map(of_rows, x))

    return reduced


def _gathered(original: PyTreeFunction) -> PyTreeFunction:
    @functools.wraps(original)
    def all_gather(
        x: PyTree, axis_name: Hashable, *args: PyTree, axis: int = 0, tiled: bool = False, **kwargs: PyTree
    ) -> PyTree:
        mapped, others = _kinds(axis_name)
        if len(mapped) != 1 or others or _asks_for_more(kwargs):
            return original(x, axis_name, axis=axis, tiled=tiled, **kwargs)

        def gathered(leaf: jax.typing.ArrayLike) -> jax.Array:
            rows = rows_of_mapped_axis(jnp.asarray(leaf), mapped[0])
            return jnp.concatenate(list(rows), axis=axis) if tiled else jnp.moveaxis(rows, 0, axis)

        return jax.tree_util.tree_map(gathered, x)

    return all_gather


def _asks_for_more(options: dict[str, PyTree]) -> bool:
    """Returns whether a collective is given options; flax spells out that there are no `axis_index_groups`."""
    return any(value is not None for value in options.values())


def _kinds(axis_name: Hashable) -> tuple[tuple[Hashable, ...], tuple[Hashable, ...]]:
    """Returns the axes of `jax.vmap` among some axes, and the others; none of `jax.vmap` outside of replicas."""
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    if context.current().manual_replicas is None:
        return (), names
    of_mesh = jax.sharding.get_abstract_mesh().axis_names
    mapped = tuple(name for name in names if name not in of_mesh and not isinstance(name, int) and _is_bound(name))
    return mapped, tuple(name for name in names if name not in mapped)


def _is_bound(name: Hashable) -> bool:
    try:
        jax.lax.axis_size(name)
    except NameError:
        return False
    return True


def _refusing_equal(original: PyTreeFunction) -> PyTreeFunction:
    @functools.wraps(original)
    def psum(x: PyTree, axis_name: Hashable, *args: PyTree, **kwargs: PyTree) -> PyTree:
        replicas = context.current().manual_replicas
        names = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
        if (replicas or 1) > 1 and REPLICA_AXIS in names and not _is_called_by_replicax():
            x = jax.tree_util.tree_map(_checked_to_differ, x)
        return original(x, axis_name, *args, **kwargs)

    return psum


def _checked_to_differ(leaf: PyTree) -> PyTree:
    if not isinstance(leaf, jax.core.Tracer):
        return leaf  # A known number: `psum(1, ...)` counts the replicas.
    value, why = difference(leaf, refused_if_equal=True)
    if why is None:
        replicas = context.current().manual_replicas
        raise ReduceError(
            f"jax.lax.psum over {REPLICA_AXIS!r} got a value that is equal on all {replicas} replicas: the sum would "
            f"be {replicas} times the value. Gradients with respect to what is equal on all replicas, and what a "
            "collective has returned, are summed already; use them as they are."
        )
    return value


def _is_called_by_replicax() -> bool:
    name: str = sys._getframe(2).f_globals.get("__name__", "")
    return name.partition(".")[0] == "replicax"
