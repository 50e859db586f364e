"""Programs without placement: the same computation without a mesh, for any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax.extend import core as jex_core

from replicax.compat.jax_names import CALLS, PLACEMENT, RECOMPUTED, SHARD_MAP
from replicax.errors import ExportError
from replicax.program.ir.jaxprs import bind, read, traced_anew

_CALLS = CALLS | RECOMPUTED  # An exported program is not differentiated.


def without_placement(program: jex_core.ClosedJaxpr) -> Callable[..., list[jax.Array]]:
    """Returns a function that computes what `program` does, without its instructions about devices."""

    def portable(*args: jax.Array) -> list[jax.Array]:
        return _evaluate(program, args)

    return portable


def _evaluate(program: jex_core.ClosedJaxpr | jex_core.Jaxpr, args: Sequence[jax.Array]) -> list[jax.Array]:
    """Evaluates a program equation by equation. Tracing this makes the new program."""
    if isinstance(program, jex_core.ClosedJaxpr):
        return _evaluate_jaxpr(program.jaxpr, program.consts, args)
    return _evaluate_jaxpr(program, (), args)


def _evaluate_jaxpr(jaxpr: jex_core.Jaxpr, consts: Sequence[jax.Array], args: Sequence[jax.Array]) -> list[jax.Array]:
    values: dict[jex_core.Var, jax.Array] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for equation in jaxpr.eqns:
        results = _apply(equation, [read(atom, values) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom, values) for atom in jaxpr.outvars]


def _apply(equation: jex_core.JaxprEqn, inputs: list[jax.Array]) -> Sequence[jax.Array]:
    primitive = equation.primitive
    if primitive.name in PLACEMENT or primitive.name == "device_put":
        return inputs
    if primitive.name == SHARD_MAP:
        raise ExportError(
            "The function runs jax.shard_map (strategy.run does), which is for a certain number of devices."
        )
    if primitive.name in _CALLS:
        return _evaluate(equation.params[_CALLS[primitive.name]], inputs)
    params = {name: traced_anew(value, without_placement) for name, value in equation.params.items()}
    return bind(equation, inputs, **params)
