"""Where JAX begins to compute gradients: `jax.grad` itself may have been called long before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax._src import api

from replicax.compat.replacing import Name
from replicax.errors import ProgramError


def vjp_of_gradients(replace: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Name]:
    """Returns what has `replace(vjp)` called for each gradient in the place of JAX's own `vjp`."""
    # The functions that `jax.grad`, `jax.value_and_grad`, `jax.jacrev` and `jax.fwd_and_bwd` return find it there.
    # Without the name: an error, for gradients in a loss would be wrong in silence.
    if not hasattr(api, "vjp"):
        raise ProgramError(
            f"JAX {jax.__version__} has no jax._src.api.vjp, without which replicax cannot add up over replicas what "
            "jax.grad returns. Install an older JAX, or a newer replicax."
        )

    def wrap(original: Any) -> Any:
        ours = replace(original)

        @functools.wraps(original)
        def vjp(*args: Any, **kwargs: Any) -> Any:
            # All of them say whether there are auxiliary values. JAX's rules, which want the derivative as it is (that
            # of `jax.checkpoint` under `jax_remat3`), do not.
            return (ours if "has_aux" in kwargs else original)(*args, **kwargs)

        return vjp

    return [Name(api, "vjp", wrap)]
