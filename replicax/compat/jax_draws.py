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
from replicax.compat.replacing import Name


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


def answered_draws(drawn: Drawn) -> list[Name]:
    """Returns what lets `drawn` answer each draw of `jax.random`, in whatever function of it."""
    # Without the names: random numbers of a replica function are those of each replica, and the caller says so.

    def of_bits(bits: Any) -> Any:
        def random_bits(keys: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
            return drawn(keys, bit_width, tuple(shape), lambda shape: bits(keys, bit_width=bit_width, shape=shape))

        return random_bits

    def of_split(split: Any) -> Any:
        def random_split(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            return drawn(keys, None, tuple(shape), lambda shape: split(keys, shape=shape))

        return random_split

    def of_unwrap(unwrap: Any) -> Any:
        def random_unwrap(keys: jax.Array) -> jax.Array:
            data: jax.Array = unwrap(keys)
            for axis in varying_axes(keys):  # JAX forgets that they vary.
                data = vary(data, axis)
            return data

        return random_unwrap

    prng = _prng()
    wraps = {"random_bits": of_bits, "random_split": of_split, "random_unwrap": of_unwrap}
    return [Name(prng, name, wrap) for name, wrap in wraps.items()]


#: A sampler of JAX's, and what it was given: returns the sample.
Sampled: TypeAlias = Callable[[Callable[..., jax.Array], inspect.BoundArguments], jax.Array]


def answered_samplers(sampled: Mapping[str, Sampled]) -> list[Name]:
    """Returns what lets functions of ours answer the calls of some samplers of JAX's, by their names in its module."""
    # Without a name: what it draws for the rows of a replica is not what one device draws for them.
    return [
        Name(module, name, functools.partial(_answered, answer))
        for name, answer in sampled.items()
        for module in (sampler_module(), jax.random)
        if hasattr(module, name)
    ]


def _answered(answer: Sampled, sampler: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
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
