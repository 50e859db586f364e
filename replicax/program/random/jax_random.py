"""How `jax.random` draws for rows while a replica function runs: what is drawn in parts, and what is drawn whole.

Uniform and normal numbers, masks, categories and keys are made of bits, each of its own: a replica draws its part. A
sampler that repeats a loop until all of its numbers are accepted (`poisson`, `binomial`), or that splits its key into
as many as it has numbers (`gamma`, and what is made of it), draws for the rows of all replicas on each of them, and a
replica takes its rows. So does a permutation of the rows, which are gathered for that.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.compat.jax import vary, varying_axes
from replicax.compat.jax_draws import Sampled, answered_draws, answered_samplers
from replicax.compat.jax_tracing import is_kept_by_jax, is_on_devices, trace_anew_from_here, tracing_anew
from replicax.compat.replacing import Name, Replaced
from replicax.program.hints.advice import advise_of_masks
from replicax.program.random.row_bits import bits_of_rows, own_rows
from replicax.program.random.row_draws import RowDraws
from replicax.runtime.mesh import REPLICA_AXIS

#: Generators of which `jax.vmap` over keys draws all numbers with the first key, whichever row that belongs to.
_OF_FIRST_KEY = ("rbg", "unsafe_rbg")
_BY_WHICH_ALGORITHM = "method"  # of `jax.random.beta`, since JAX 0.12
_OF_NUMBERS = "permutation of row numbers"


@contextlib.contextmanager
def drawing(draws: RowDraws | None) -> Iterator[None]:
    """Lets `draws` decide about the random numbers that are drawn in a `with` block; None: each replica by itself."""
    if draws is None:
        with context.entered(row_draws=None):
            yield
    else:
        with context.entered(row_draws=draws), _ANSWERED(), tracing_anew():
            yield


def _answered() -> list[Name]:
    samplers: dict[str, Sampled] = {
        "_beta": functools.partial(_sampled, "beta"),
        "_gamma": functools.partial(_sampled, "gamma"),
        "_poisson": functools.partial(_sampled, "poisson"),
        "_binomial": functools.partial(_sampled, "binomial"),
        "_permutation": _permuted,
        "_shuffle": _shuffled,
        "choice": _chosen,
    }
    return [*answered_draws(_drawn), *answered_samplers(samplers)]


_ANSWERED = Replaced(_answered)


def _draws_of(key: jax.Array) -> RowDraws | None:
    """Returns the active `RowDraws`; None for a key that differs between replicas, or outside of a program."""
    draws = cast("RowDraws | None", context.current().row_draws)
    # Numbers that are drawn at once, such as the first value of a variable, are no part of the program.
    if draws is None or not (is_kept_by_jax() or is_on_devices()):
        return None
    return None if REPLICA_AXIS in varying_axes(key) else draws


def _drawn(
    key: jax.Array, bit_width: int | None, shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], jax.Array]
) -> jax.Array:
    draws = _draws_of(key)
    if draws is None or not shape:
        return draw(shape)
    if bit_width is not None:
        dimension = draws.dimension("bits", shape)
    elif jax.random.key_impl(key) in _OF_FIRST_KEY:
        dimension = draws.dimension("split of an RBG key", shape, refused=tuple(range(len(shape))))
    else:
        dimension = draws.dimension("keys", shape)
    if dimension is None:
        return draw(shape)
    if context.current().part_of_rows != 1:
        advise_of_masks(context.current().strategy)
    if draws.replicas == 1:  # Typed as in the other trace, so that loops are traced alike.
        return vary(draw(shape), REPLICA_AXIS)
    return bits_of_rows(key, bit_width, shape, dimension, draws.replicas, draw)


def _sampled(name: str, sampler: Callable[..., jax.Array], given: inspect.BoundArguments) -> jax.Array:
    """Draws with a sampler of numbers: its arguments are a key, parameters of the distribution, a shape and a dtype."""
    key, *names = given.arguments
    names = [each for each in names[: names.index("shape")] if each != _BY_WHICH_ALGORITHM]
    parameters = {each: jnp.asarray(given.arguments[each]) for each in names}
    shape = given.arguments["shape"]
    if shape is None:
        shape = np.broadcast_shapes(*(parameter.shape for parameter in parameters.values()))
    draws = _draws_of(given.arguments[key])
    dimension = draws.dimension(name, tuple(shape)) if draws and shape else None
    if draws is None or dimension is None:
        return sampler(*given.args, **given.kwargs)
    whole = tuple(size * draws.replicas if i == dimension else size for i, size in enumerate(shape))
    given.arguments |= {each: _of_all(parameter, tuple(shape), dimension) for each, parameter in parameters.items()}
    given.arguments["shape"] = whole
    return _of_rows(draws, dimension, functools.partial(sampler, *given.args, **given.kwargs))


def _permuted(sampler: Callable[..., jax.Array], given: inspect.BoundArguments) -> jax.Array:
    """Permutes an array along an axis, which may be that of the rows."""
    x, axis = jnp.asarray(given.arguments["x"]), given.arguments["axis"]
    draws = _draws_of(given.arguments["key"])
    if draws is None:
        return sampler(*given.args, **given.kwargs)
    if REPLICA_AXIS not in varying_axes(x):  # Such as the numbers of the rows, which each replica counts from 0.
        draws.dimension(_OF_NUMBERS, x.shape, refused=(axis,))
        return sampler(*given.args, **given.kwargs)
    if draws.dimension(f"permutation along dimension {axis}", x.shape) != axis:
        return sampler(*given.args, **given.kwargs)
    given.arguments["x"] = _of_all(x, x.shape, axis)
    return _of_rows(draws, axis, functools.partial(sampler, *given.args, **given.kwargs))


def _shuffled(sampler: Callable[..., jax.Array], given: inspect.BoundArguments) -> jax.Array:
    """Shuffles numbers along an axis. Those of `jax.random.permutation(key, rows)` are row numbers of all replicas."""
    draws = _draws_of(given.arguments["key"])
    if draws is not None:
        draws.dimension(_OF_NUMBERS, np.shape(given.arguments["x"]), refused=(given.arguments["axis"],))
    return sampler(*given.args, **given.kwargs)


def _chosen(sampler: Callable[..., jax.Array], given: inspect.BoundArguments) -> jax.Array:
    """Chooses from an array: not from rows, and without replacement a row may not have what another one has."""
    draws = _draws_of(given.arguments["key"])
    given.apply_defaults()
    shape, among = tuple(given.arguments["shape"]), given.arguments["a"]
    if draws is not None:
        of_numbers = not np.ndim(among)
        sizes = (int(among),) if of_numbers else np.shape(among)
        draws.dimension("choice among rows", sizes, refused=(0 if of_numbers else given.arguments["axis"],))
    if draws is not None and shape and not given.arguments["replace"]:
        draws.dimension("choice without replacement", shape, refused=tuple(range(len(shape))))
    return sampler(*given.args, **given.kwargs)


def _of_all(value: jax.Array, shape: tuple[int, ...], dimension: int) -> jax.Array:
    """Returns what is known for the rows of this replica, for those of all replicas."""
    varies = REPLICA_AXIS in varying_axes(value)
    of_rows = dimension - len(shape) + value.ndim
    if not varies and (of_rows < 0 or value.shape[of_rows] == 1 != shape[dimension]):
        return value
    value = vary(jnp.broadcast_to(value, shape), REPLICA_AXIS)
    gathered: jax.Array = jax.lax.all_gather(value, REPLICA_AXIS, axis=dimension, tiled=True, to="invarying")
    return gathered


def _of_rows(draws: RowDraws, dimension: int, sample: Callable[[], jax.Array]) -> jax.Array:
    """Returns this replica's rows of what a sampler draws for all of them."""
    trace_anew_from_here()
    with drawing(None):
        whole = vary(sample(), REPLICA_AXIS)
    trace_anew_from_here()
    return whole if draws.replicas == 1 else own_rows(whole, dimension, draws.replicas)
