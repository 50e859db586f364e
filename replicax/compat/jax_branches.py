"""`jax.lax.cond` under `jax.vmap`, where each row takes a branch of its own, in programs of replicas.

JAX computes all branches then, and gives each operand to a branch by a `select` on the rows that take it. Where these
rows are a replica's own, all that comes out of the `select` varies, and the branches, which were traced with weights
that all replicas have alike, fit their operands no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src.lax.control_flow import conditionals
from jax.extend import core as jex_core
from jax.interpreters import batching

from replicax.compat.jax import vary, varying_axes
from replicax.compat.replacing import Name


def retyped_branches(axis_name: str, varying: Callable[[jex_core.ClosedJaxpr], jex_core.ClosedJaxpr]) -> list[Name]:
    """Returns what lets rows of one device choose among branches that use values from all."""
    # `varying` returns a program whose operands and results vary over the axis. Without the names: JAX's errors about
    # types.
    rules: Any = getattr(batching, "fancy_primitive_batchers", {})
    primitive: Any = getattr(conditionals, "cond_p", None)
    if primitive not in rules:
        return []

    def chosen_by_rows(rule: Any) -> Any:
        def rows_choose(
            axis_data: object,
            args: Sequence[jax.Array],
            dims: Sequence[int | None],
            *,
            branches: Sequence[jex_core.ClosedJaxpr],
            **params: object,
        ) -> object:
            if dims[0] is not None and axis_name in varying_axes(args[0]):
                args, branches = [vary(arg, axis_name) for arg in args], tuple(map(varying, branches))
            return rule(axis_data, args, dims, branches=branches, **params)

        return rows_choose

    return [Name(rules, primitive, chosen_by_rows)]
