"""Keras's step as one compiled program, which overwrites the state that it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax.program.jaxprs import calls_host


class CompiledStep:
    """A step `(state, data) -> (outputs, state)`, compiled for each kind of data.

    A step that calls functions of the host, which may raise, keeps the old state until it has ended.

    Args:
        step: The step.
        out_shardings: Those of its results.
    """

    def __init__(self, step: Callable[..., Any], out_shardings: Any):
        self._in_place = jax.jit(step, donate_argnums=0, out_shardings=out_shardings)
        self._keeping = jax.jit(step, out_shardings=out_shardings)
        self._calls_host: dict[Any, bool] = {}

    def __call__(self, state: Any, data: Any) -> tuple[Any, Any]:
        """Makes a step."""
        program, inputs, results_of = self.staged(state, data)
        return results_of(program(*inputs))

    def staged(self, state: Any, data: Any) -> tuple[Callable[..., Any], Sequence[Any], Callable[[Any], Any]]:
        """Returns the program, its arguments, and what makes the results of what it returns."""
        if self._keeps(state, data):
            return self._keeping, (state, data), jax.block_until_ready
        return self._in_place, (state, data), _itself

    def lower(self, state: Any, data: Any) -> jax.stages.Lowered:
        """Returns the program as JAX lowers it."""
        program = self._keeping if self._keeps(state, data) else self._in_place
        return program.lower(state, data)

    def _keeps(self, state: Any, data: Any) -> bool:
        leaves, treedef = jax.tree_util.tree_flatten(data)
        kind = treedef, *((leaf.shape, leaf.dtype) for leaf in leaves)
        found = self._calls_host.get(kind)
        if found is None:
            # JAX finds the traced step again when it is called.
            found = self._calls_host[kind] = calls_host(self._in_place.trace(state, data).jaxpr)
        return found


def _itself(results: Any) -> Any:
    return results
