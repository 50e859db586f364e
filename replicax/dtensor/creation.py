"""Creating tensors in their layout: each device computes its own shard, and none holds the whole tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from replicax.checks import checked_int, explained
from replicax.compat.jax import is_random_key
from replicax.compat.jax_tracing import constants_are_traced
from replicax.dtensor.arrays import checked_layout, is_traced, laid_out
from replicax.dtensor.layout import Layout
from replicax.errors import ArgumentError, LayoutError
from replicax.program.function import WeakProgramCaches
from replicax.program.pytrees import Structure, is_array
from replicax.typing import Leaf, PyTree, PyTreeFunction

Seed = int | Sequence[int] | jax.Array


def call_with_layout(fn: PyTreeFunction, layout: Layout | None, *args: PyTree, **kwargs: PyTree) -> PyTree:
    """Calls a function so that its results have a layout.

    The function is compiled as one program whose results have the layout, so that no device holds the whole of a large
    result. Arrays among the arguments are inputs of the program; anything else (shapes, numbers, dtypes) is a constant
    in it. In a traced function the results are laid out with `relayout`.

    Args:
        fn: A function that JAX can trace, returning a pytree of arrays.
        layout: The layout of each array that `fn` returns; None calls `fn` as it is.
        *args: Arguments of `fn`.
        **kwargs: Arguments of `fn`.

    Raises:
        LayoutError: A result has another rank, or a dimension that does not divide, or an argument lives elsewhere.
        ArgumentError: `fn` is not callable, or does not return arrays.

    Example:
        >>> from replicax.dtensor import UNSHARDED, create_mesh
        >>> layout = Layout(["x", UNSHARDED], create_mesh([("x", 8)]))
        >>> call_with_layout(jnp.zeros, layout, shape=(16, 3)).addressable_shards[0].data.shape
        (2, 3)
    """
    if not callable(fn):
        raise ArgumentError(f"call_with_layout calls a function, got {type(fn).__name__}: {fn!r:.100}.")
    if layout is None:
        return fn(*args, **kwargs)
    return _call(fn, checked_layout(layout), args, kwargs)


def _call(fn: PyTreeFunction, layout: Layout | None, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
    """Calls `fn` as one program, or as a part of the one that is being traced."""
    leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
    if any(map(is_traced, leaves)) or constants_are_traced():
        results = fn(*args, **kwargs)
        return results if layout is None else jax.tree_util.tree_map(lambda result: laid_out(result, layout), results)
    arrays = [leaf for leaf in leaves if is_array(leaf)]
    static = tuple((i, leaf) for i, leaf in enumerate(leaves) if not is_array(leaf))
    if layout is not None:
        _check_devices(arrays, layout)
    return _program(fn, layout, Structure(treedef, static, len(leaves)))(arrays)


def _check_devices(arrays: Sequence[jax.Array | np.ndarray], layout: Layout) -> None:
    devices = set(layout.mesh.global_devices())
    for array in arrays:
        if isinstance(array, jax.Array) and array.committed and array.sharding.device_set != devices:
            raise LayoutError(
                f"An argument of the function lives on {array.sharding!r:.200}, but the result is to be made on "
                f"{layout.mesh!r}. Move it there first: copy_to_mesh(argument, a layout of that mesh)."
            )


_PROGRAMS = WeakProgramCaches[PyTreeFunction]()


def _program(fn: PyTreeFunction, layout: Layout | None, structure: Structure) -> PyTreeFunction:
    """Returns `fn` as a compiled function of its arrays, from a cache if the other arguments are the same."""

    def make(get_fn: Callable[[], PyTreeFunction]) -> PyTreeFunction:
        def laid_out_results(arrays: list[jax.Array | np.ndarray]) -> PyTree:
            args, kwargs = structure.rebuild(arrays)
            results = get_fn()(*args, **kwargs)
            return jax.tree_util.tree_map(lambda result: _checked(result, layout), results)

        return jax.jit(laid_out_results, out_shardings=None if layout is None else layout.to_sharding())

    # With types and signs: 1, 1.0 and True are equal, like 0.0 and -0.0, but they make different programs.
    static = tuple((i, type(leaf), repr(leaf) if isinstance(leaf, float) else leaf) for i, leaf in structure.static)
    variant = (layout, structure.treedef, static)
    try:
        hash(variant)
    except TypeError:
        return make(lambda: fn)
    return _PROGRAMS.get(fn, variant, make)


def _checked(result: Leaf, layout: Layout | None) -> jax.Array:
    if not is_array(result):
        raise ArgumentError(f"A function called with a layout must return arrays, got {type(result).__name__}.")
    if layout is not None:
        layout.check_shape(result.shape)
    return result


@explained
def stateless_uniform(
    shape: Sequence[int],
    seed: Seed,
    minval: ArrayLike = 0,
    maxval: ArrayLike = 1,
    dtype: DTypeLike = jnp.float32,
    layout: Layout | None = None,
) -> jax.Array:
    """Returns random numbers, uniform in `[minval, maxval)`.

    The numbers depend only on the seed, shape and dtype, never on the layout. (TensorFlow's differ if the result is
    sharded.) They come from the counter-based generator Threefry of Salmon et al., "Parallel Random Numbers: As Easy as
    1, 2, 3" (2011), so that each device makes its own. (Inside a larger compiled function XLA may fuse the last
    multiplication and addition into one, which rounds once instead of twice.)

    Args:
        shape: Shape of the tensor.
        seed: An int, a pair of ints as TensorFlow takes it, or a JAX random key.
        minval: Lower bound.
        maxval: Upper bound.
        dtype: A float dtype, or an integer one.
        layout: Layout of the result; by default a plain array.

    Raises:
        ArgumentError: `seed` is not one of these.
        LayoutError: The layout does not fit the shape.

    Example:
        >>> import jax.numpy as jnp
        >>> layout = rx.dtensor.Layout(["x"], rx.dtensor.create_mesh([("x", 8)]))
        >>> rx.dtensor.stateless_uniform((8,), seed=(1, 2), maxval=10, dtype=jnp.int32, layout=layout).dtype
        dtype('int32')
    """
    draw = jax.random.randint if jnp.issubdtype(dtype, jnp.integer) else jax.random.uniform
    return _drawn(draw, shape, seed, layout, minval=minval, maxval=maxval, dtype=np.dtype(dtype))


@explained
def stateless_normal(
    shape: Sequence[int],
    seed: Seed,
    mean: ArrayLike = 0.0,
    stddev: ArrayLike = 1.0,
    dtype: DTypeLike = jnp.float32,
    layout: Layout | None = None,
) -> jax.Array:
    """Returns random numbers from a normal distribution; otherwise like `stateless_uniform`.

    Example:
        >>> layout = rx.dtensor.Layout(["x"], rx.dtensor.create_mesh([("x", 8)]))
        >>> rx.dtensor.stateless_normal((8,), seed=(1, 2), layout=layout).shape
        (8,)
    """
    return _drawn(_normal, shape, seed, layout, mean=mean, stddev=stddev, dtype=np.dtype(dtype))


@explained
def stateless_truncated_normal(
    shape: Sequence[int],
    seed: Seed,
    mean: ArrayLike = 0.0,
    stddev: ArrayLike = 1.0,
    dtype: DTypeLike = jnp.float32,
    layout: Layout | None = None,
) -> jax.Array:
    """Returns normal random numbers within two standard deviations; otherwise like `stateless_uniform`.

    Example:
        >>> bool((abs(rx.dtensor.stateless_truncated_normal((100,), seed=(1, 2))) <= 2).all())
        True
    """
    return _drawn(_truncated_normal, shape, seed, layout, mean=mean, stddev=stddev, dtype=np.dtype(dtype))


def _drawn(
    draw: Callable[..., jax.Array],
    shape: Sequence[int],
    seed: Seed,
    layout: Layout | None,
    **parameters: ArrayLike | np.dtype,
) -> jax.Array:
    # Partitionable: a device can make its shard of the numbers alone, and they are the same in any layout.
    with jax.threefry_partitionable(True):
        layout = None if layout is None else checked_layout(layout)
        key = _key(seed)
        if layout is not None:  # JAX makes keys on the default mesh, and a user's key may be anywhere.
            key = laid_out(key, Layout.replicated(layout.mesh, key.ndim))
        # One program, also without a layout: operation by operation, the numbers would be rounded once more.
        return _call(draw, layout, (key, tuple(checked_int("shape", size) for size in shape)), parameters)


def _normal(key: jax.Array, shape: tuple[int, ...], mean: ArrayLike, stddev: ArrayLike, dtype: np.dtype) -> jax.Array:
    return jnp.asarray(mean + stddev * jax.random.normal(key, shape, dtype))


def _truncated_normal(
    key: jax.Array, shape: tuple[int, ...], mean: ArrayLike, stddev: ArrayLike, dtype: np.dtype
) -> jax.Array:
    return jnp.asarray(mean + stddev * jax.random.truncated_normal(key, -2, 2, shape, dtype))


def _key(seed: Seed) -> jax.Array:
    if is_random_key(seed):
        return seed
    numbers: jax.Array | np.ndarray = seed if isinstance(seed, jax.Array) else np.asarray(seed)
    if numbers.dtype.kind not in "iu" or numbers.shape not in ((), (2,)):
        raise ArgumentError(f"A seed is an int, a pair of ints or a JAX random key, got {seed!r:.100}.")
    if numbers.shape == ():
        return jax.random.key(numbers, impl="threefry2x32")
    return jax.random.wrap_key_data(jnp.asarray(numbers.astype(np.uint32)), impl="threefry2x32")
