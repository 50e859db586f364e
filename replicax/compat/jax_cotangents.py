"""Rules of `jax.custom_vjp`: what surrounds them, and the types of the cotangents that they return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax._src import custom_derivatives, linear_util

from replicax.compat.replacing import Name


def custom_rules(
    around: Callable[[], AbstractContextManager[object]],
    retyped: Callable[[jax.Array, jax.core.AbstractValue], jax.Array],
) -> list[Name]:
    """Returns what has rules run in `around()`, and replaces each cotangent by `retyped(cotangent, operand's type)`."""
    # Rules that JAX has of its own (`odeint`) are among them. JAX compares the types of cotangents and operands.
    # Without the names: JAX's errors about types, and gradients in rules count as those of a loss.

    @linear_util.transformation2
    def surrounded(forward: Callable[..., Any], *args: Any) -> Any:
        with around():
            return forward(*args)

    @linear_util.transformation2
    def rule(backward: Callable[..., Any], types: Sequence[Any], tree: Any, *args: Any) -> Any:
        with around():
            found = backward(*args)
        given = jax.tree_util.tree_unflatten(tree, types)
        try:
            return jax.tree_util.tree_map(
                lambda cotangent, kind: retyped(cotangent, kind) if isinstance(cotangent, jax.Array) else cotangent,
                tuple(found) if isinstance(found, list) else found,
                given,
                is_leaf=lambda leaf: leaf is None,
            )
        except ValueError:
            return found  # JAX says what is wrong with its structure.

    def wrap_forward(original: Any) -> Any:
        @functools.wraps(original)
        def flatten_fwd(forward: Any, *rest: Any) -> Any:
            return original(surrounded(forward), *rest)

        return flatten_fwd

    def wrap_backward(original: Any) -> Any:
        @functools.wraps(original)
        def flatten_bwd(backward: Any, tree: Any, types: Sequence[Any], *rest: Any) -> Any:
            return original(rule(backward, tuple(types), tree), tree, types, *rest)

        return flatten_bwd

    found = {"_flatten_fwd": wrap_forward, "_flatten_bwd": wrap_backward}
    return [Name(custom_derivatives, name, wrap) for name, wrap in found.items() if hasattr(custom_derivatives, name)]
