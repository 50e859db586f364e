"""Operands of gradients, where JAX begins to compute these: `jax.grad` itself may have been called long before."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax._src import api

from replicax.compat.replacing import Name


def retyped_operands(retyped: Callable[[Callable[..., Any], Sequence[Any]], Sequence[Any]]) -> list[Name]:
    """Returns what replaces the operands of each gradient by `retyped(function, operands)`."""
    # The functions that `jax.grad`, `jax.value_and_grad` and `jax.jacrev` return find `vjp` there. Without the
    # name: replicas sum the gradients of single rows, unless `jax.grad` is called in the step.

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def vjp(fun: Callable[..., Any], *operands: Any, **kwargs: Any) -> Any:
            return original(fun, *retyped(fun, operands), **kwargs)

        return vjp

    return [Name(api, "vjp", wrap)] if hasattr(api, "vjp") else []
