"""Cotangents that rules of `jax.custom_vjp` return, before JAX compares their types with those of the operands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import custom_derivatives, linear_util

from replicax.compat.replacing import Name


def retyped_cotangents(retyped: Callable[[jax.Array, jax.core.AbstractValue], jax.Array]) -> list[Name]:
    """Returns what replaces each cotangent that a rule returns by `retyped(cotangent, type of the operand)`."""
    # Rules that JAX has of its own (`odeint`) are among them. Without the name: JAX's errors about types.

    @linear_util.transformation2
    def rule(backward: Callable[..., Any], types: Sequence[Any], tree: Any, *args: Any) -> Any:
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

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def flatten_bwd(backward: Any, tree: Any, types: Sequence[Any], *rest: Any) -> Any:
            return original(rule(backward, tuple(types), tree), tree, types, *rest)

        return flatten_bwd

    return [Name(custom_derivatives, "_flatten_bwd", wrap)] if hasattr(custom_derivatives, "_flatten_bwd") else []
