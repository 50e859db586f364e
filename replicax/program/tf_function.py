"""What `tf.function` has and `rx.function` has not: each keyword with the reason and the way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicax.errors import ArgumentError

_COMPILES = (
    "every rx.function is compiled by XLA, which is what jit_compile=True asks for. To run the Python operation by "
    "operation, use rx.config.run_eagerly(True)"
)
_SHAPES = (
    "XLA compiles for fixed shapes, so each new shape makes a program. Give batches of one size "
    "(rx.InputOptions(remainder='drop'), or pad them)"
)
_AUTOGRAPH = (
    "nothing rewrites the function's Python: an `if` or `for` over arrays is written with jnp.where, jax.lax.cond, "
    "scan or fori_loop; over Python values it runs while the function is traced"
)
_GRAPHS = "there is no TensorFlow graph to mark or to replace functions in"

#: Keyword of `tf.function` -> the values that mean what happens anyway, and why no other can be had.
_KEYWORDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "jit_compile": ((None, True), _COMPILES),
    "experimental_compile": ((None, True), _COMPILES),
    "reduce_retracing": ((None, False), _SHAPES),
    "experimental_relax_shapes": ((None, False), _SHAPES),
    "autograph": ((None, False), _AUTOGRAPH),
    "experimental_autograph_options": ((None,), _AUTOGRAPH),
    "experimental_implements": ((None,), _GRAPHS),
    "experimental_attributes": ((None,), _GRAPHS),
    "experimental_follow_type_hints": ((None, False), "arrays and numbers are inputs, whatever their annotations say"),
}


def check_keywords(given: Mapping[str, Any]) -> None:
    """Checks keywords of `tf.function` that were given to `rx.function`.

    Raises:
        ArgumentError: One is unknown, or asks for something that does not exist here.
    """
    for name, value in given.items():
        if name not in _KEYWORDS:
            raise ArgumentError(f"rx.function has no parameter {name!r} (and neither has tf.function).")
        meant, reason = _KEYWORDS[name]
        if not any(value is each for each in meant):
            allowed = " or ".join(repr(each) for each in meant)
            raise ArgumentError(f"rx.function(..., {name}={value!r:.100}): {reason}. Leave it out ({allowed}).")
