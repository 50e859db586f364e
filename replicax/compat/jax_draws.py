"""Where `jax.random` turns a key into random bits or into more keys: all of its functions come by these two places."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import jax


class Drawn(Protocol):
    """Answers a draw."""

    def __call__(
        self,
        key: jax.Array,
        bit_width: int | None,
        shape: tuple[int, ...],
        draw: Callable[[tuple[int, ...]], jax.Array],
    ) -> jax.Array:
        """Returns the numbers.

        Args:
            key: A typed key.
            bit_width: Bits of each number; None where the key is split into other keys.
            shape: The shape of what is drawn.
            draw: Draws as JAX does: numbers, or keys, of a shape.
        """


def intercept_draws(drawn: Drawn) -> None:
    """Lets `drawn` answer each draw of `jax.random` in this process, in whatever function of it.

    Without the names: random numbers of a replica function are those of each replica, and the caller says so.
    """
    prng = _prng()
    bits, split = prng.random_bits, prng.random_split

    def random_bits(keys: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
        return drawn(keys, bit_width, tuple(shape), lambda shape: bits(keys, bit_width=bit_width, shape=shape))

    def random_split(keys: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return drawn(keys, None, tuple(shape), lambda shape: split(keys, shape=shape))

    prng.random_bits, prng.random_split = random_bits, random_split


def _prng() -> Any:
    try:
        return importlib.import_module("jax._src.random.prng")
    except ImportError:  # JAX 0.10.0, where `jax._src.random` is no package.
        return importlib.import_module("jax._src.prng")
