"""Where `jax.random` turns a key into random bits or into more keys, and where it draws in another way.

Its functions come by `random_bits` and `random_split`, except for `gamma`, which JAX writes out when it compiles.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import jax

from replicax.compat.jax import vary, varying_axes


class Drawn(Protocol):
    """Answers a draw."""

    def __call__(
        self,
        key: jax.Array,  # typed
        bit_width: int | None,  # of each number; None where the key is split
        shape: tuple[int, ...],
        draw: Callable[[tuple[int, ...]], jax.Array],
    ) -> jax.Array:
        """Returns the numbers, or the keys into which `key` is split; `draw` draws them as JAX does."""


def intercept_draws(drawn: Drawn) -> None:
    """Lets `drawn` answer each draw of `jax.random` in this process, in whatever function of it."""
    # Without the names: random numbers of a replica function are those of each replica, and the caller says so.
    prng = _prng()
    bits, split, unwrap = prng.random_bits, prng.random_split, prng.random_unwrap

    def random_bits(keys: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
        return drawn(keys, bit_width, tuple(shape), lambda shape: bits(keys, bit_width=bit_width, shape=shape))

    def random_split(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return drawn(keys, None, tuple(shape), lambda shape: split(keys, shape=shape))

    def random_unwrap(keys: jax.Array) -> jax.Array:
        data: jax.Array = unwrap(keys)
        for axis in varying_axes(keys):  # JAX forgets that they vary.
            data = vary(data, axis)
        return data

    prng.random_bits, prng.random_split, prng.random_unwrap = random_bits, random_split, random_unwrap


#: A sampler of JAX's, and what it was given: returns the sample.
Sampled: TypeAlias = Callable[[Callable[..., jax.Array], inspect.BoundArguments], jax.Array]


def intercept_samplers(sampled: Mapping[str, Sampled]) -> None:
    """Lets functions of ours answer the calls of some samplers of JAX's, by their names in its module."""
    # Without a name: what it draws for the rows of a replica is not what one device draws for them.
    module = sampler_module()
    for name, answer in sampled.items():
        wrapped = _answered(getattr(module, name), answer)
        for each in (module, jax.random):
            if hasattr(each, name):
                setattr(each, name, wrapped)


def _answered(sampler: Callable[..., jax.Array], answer: Sampled) -> Callable[..., jax.Array]:
    signature = inspect.signature(sampler)

    @functools.wraps(sampler)
    def call(*args: object, **kwargs: object) -> jax.Array:
        return answer(sampler, signature.bind(*args, **kwargs))

    return call


def sampler_module() -> Any:
    """Returns the module in which JAX's samplers stand."""
    try:
        return importlib.import_module("jax._src.random.core")
    except ImportError:  # JAX 0.10.0, where `jax._src.random` is no package.
        return importlib.import_module("jax._src.random")


def _prng() -> Any:
    try:
        return importlib.import_module("jax._src.random.prng")
    except ImportError:  # JAX 0.10.0, where `jax._src.random` is no package.
        return importlib.import_module("jax._src.prng")
