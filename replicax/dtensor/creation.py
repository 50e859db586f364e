"""Creating tensors in their layout: each device computes its own part, so that none ever holds the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.dtensor.layout import Layout
from replicax.dtensor.placement import checked_layout, is_traced, laid_out
from replicax.errors import ArgumentError
from replicax.program.function import WeakProgramCaches
from replicax.program.nest import Structure, is_array

Seed = int | Sequence[int] | jax.Array


def call_with_layout(fn: Callable[..., Any], layout: Layout | None, *args: Any, **kwargs: Any) -> Any:
    """Calls a function so that its results are made in a layout.

    The function is compiled as one program whose results have the layout, so that a large result is never whole on one
    device. Arrays among the arguments are inputs of the program; anything else (shapes, numbers, dtypes) is fixed in
    it. In a traced function the results are relaid.

    Args:
        fn: A function that JAX can trace, returning a nest of arrays.
        layout: The layout of each array that `fn` returns; None calls `fn` as it is.
        *args: Arguments of `fn`.
        **kwargs: Arguments of `fn`.

    Raises:
        LayoutError: A result has another rank, or a dimension that does not divide.
        ArgumentError: `fn` is not callable, or returns something else than arrays.

    Example:
        >>> from replicax.dtensor import create_mesh
        >>> layout = Layout(["x", UNSHARDED], create_mesh([("x", 8)]))
        >>> call_with_layout(jnp.zeros, layout, shape=(16, 3)).addressable_shards[0].data.shape
        (2, 3)
    """
    if not callable(fn):
        raise ArgumentError(f"call_with_layout calls a function, got {type(fn).__name__}: {fn!r:.100}.")
    if layout is None:
        return fn(*args, **kwargs)
    layout = checked_layout(layout)
    leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
    if context.current().frame is not None or any(map(is_traced, leaves)):
        return jax.tree_util.tree_map(lambda result: laid_out(result, layout), fn(*args, **kwargs))
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    static = tuple((i, leaf) for i, leaf in enumerate(leaves) if not is_array(leaf))
    return _program(fn, layout, Structure(treedef, static, len(leaves)))(arrays)


_PROGRAMS = WeakProgramCaches()


def _program(fn: Callable[..., Any], layout: Layout, structure: Structure) -> Any:
    """Returns `fn` as a compiled function of its arrays, the same one for the same other arguments."""

    def make(get_fn: Callable[[], Callable[..., Any]]) -> Any:
        def laid_out_results(arrays: list[Any]) -> Any:
            args, kwargs = structure.rebuild(arrays)
            results = get_fn()(*args, **kwargs)
            return jax.tree_util.tree_map(lambda result: _checked(result, layout), results)

        return jax.jit(laid_out_results, out_shardings=layout.to_sharding())

    # With their types: 1, 1.0 and True are equal, but make different programs.
    static = tuple((i, type(leaf), leaf) for i, leaf in structure.static)
    variant = (layout, structure.treedef, static)
    try:
        hash(variant)
    except TypeError:
        return make(lambda: fn)
    return _PROGRAMS.get(fn, variant, make)


def _checked(result: Any, layout: Layout) -> jax.Array:
    if not is_array(result):
        raise ArgumentError(f"A function called with a layout returns arrays, got {type(result).__name__}.")
    layout.check_shape(result.shape)
    return result


def stateless_uniform(
    shape: Sequence[int], seed: Seed, minval: Any = 0, maxval: Any = 1, dtype: Any = jnp.float32, layout: Any = None
) -> jax.Array:
    """Returns random numbers, uniform in `[minval, maxval)`.

    The numbers depend on the seed, shape and dtype only, never on the layout. (TensorFlow's differ where the result is
    cut.) They are made with the counter-based generator Threefry of Salmon et al., "Parallel Random Numbers: As Easy as
    1, 2, 3" (2011), so that each device makes its own.

    Args:
        shape: Shape of the tensor.
        seed: An int, a pair of ints as TensorFlow takes it, or a JAX random key.
        minval: Lower bound.
        maxval: Upper bound.
        dtype: A float dtype, or an integer one.
        layout: Layout of the result; by default a plain array.

    Raises:
        ArgumentError: `seed` is none of those.
        LayoutError: The layout does not fit the shape.
    """
    draw = jax.random.randint if jnp.issubdtype(dtype, jnp.integer) else jax.random.uniform
    return _drawn(draw, shape, seed, layout, minval=minval, maxval=maxval, dtype=np.dtype(dtype))


def stateless_normal(
    shape: Sequence[int], seed: Seed, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = jnp.float32, layout: Any = None
) -> jax.Array:
    """Returns random numbers from a normal distribution; otherwise like `stateless_uniform`."""
    return _drawn(_normal, shape, seed, layout, mean=mean, stddev=stddev, dtype=np.dtype(dtype))


def stateless_truncated_normal(
    shape: Sequence[int], seed: Seed, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = jnp.float32, layout: Any = None
) -> jax.Array:
    """Returns normal random numbers within two standard deviations; otherwise like `stateless_uniform`."""
    return _drawn(_truncated_normal, shape, seed, layout, mean=mean, stddev=stddev, dtype=np.dtype(dtype))


def _drawn(draw: Callable[..., jax.Array], shape: Sequence[int], seed: Seed, layout: Any, **parameters: Any) -> Any:
    # Partitionable: a device can make its part of the numbers alone, and they are those of any other layout.
    with jax.threefry_partitionable(True):
        return call_with_layout(draw, layout, _key(seed), tuple(shape), **parameters)


def _normal(key: jax.Array, shape: tuple[int, ...], mean: Any, stddev: Any, dtype: Any) -> jax.Array:
    return mean + stddev * jax.random.normal(key, shape, dtype)


def _truncated_normal(key: jax.Array, shape: tuple[int, ...], mean: Any, stddev: Any, dtype: Any) -> jax.Array:
    return mean + stddev * jax.random.truncated_normal(key, -2, 2, shape, dtype)


def _key(seed: Seed) -> jax.Array:
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        return jax.random.key(int(seed), impl="threefry2x32")
    pair = np.asarray(seed) if isinstance(seed, (Sequence, np.ndarray, jax.Array)) else np.zeros(0)
    if pair.shape != (2,) or pair.dtype.kind not in "iu":
        raise ArgumentError(f"A seed is an int, a pair of ints or a JAX random key, got {seed!r:.100}.")
    return jax.random.wrap_key_data(jnp.asarray(pair.astype(np.uint32)), impl="threefry2x32")
