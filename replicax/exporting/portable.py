"""Taking the placement out of a program: the same computation without a mesh, for any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core as jex_core

from replicax.compat.jax_names import CALLS, PLACEMENT, RECOMPUTED, SHARD_MAP
from replicax.errors import ExportError
from replicax.program.jaxprs import bind, read, traced_anew

_CALLS = CALLS | RECOMPUTED  # Nobody will differentiate the program.


def without_placement(program: jex_core.ClosedJaxpr) -> Any:
    """Returns a function that computes what `program` does and says nothing about devices.

    Raises:
        ExportError: When called: the program is written for a certain number of devices (`jax.shard_map`, which
            `strategy.run` uses).
    """

    def portable(*args: Any) -> list[Any]:
        return _evaluate(program, args)

    return portable


def _evaluate(program: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a program equation by equation; traced, that makes the new one."""
    jaxpr, consts = (program.jaxpr, program.consts) if hasattr(program, "jaxpr") else (program, ())
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for equation in jaxpr.eqns:
        results = _apply(equation, [read(atom, values) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom, values) for atom in jaxpr.outvars]


def _apply(equation: Any, inputs: list[Any]) -> Sequence[Any]:
    primitive = equation.primitive
    if primitive.name in PLACEMENT or primitive.name == "device_put":
        return inputs
    if primitive.name == SHARD_MAP:
        raise ExportError(
            "The function runs jax.shard_map (strategy.run does), which is written for a certain number of devices."
        )
    if primitive.name in _CALLS:
        return _evaluate(equation.params[_CALLS[primitive.name]], inputs)
    params = {name: traced_anew(value, without_placement) for name, value in equation.params.items()}
    return bind(equation, inputs, **params)
