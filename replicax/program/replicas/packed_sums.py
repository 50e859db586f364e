"""Sums over the replicas of a replica function, made together: plain `jax.grad` makes one for each leaf.

JAX sums the gradient with respect to each value that is equal on all replicas by itself, right where the backward pass
has it. Between processes each sum waits for messages. So the equations are dealt out to rounds here: a round computes
all that the sums so far allow, and then the strategy's cross-device ops make the sums that are due in packs, but for
large ones. (XLA orders operations by its own rules: only which values are summed together is changed.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import jax
from jax.extend import core as jex_core

from replicax.collectives.packing import JOINED_BYTES
from replicax.compat.jax_names import SUMS_OVER_AXES
from replicax.program.ir.interpreter import evaluate
from replicax.program.ir.jaxprs import Values, aval_of, is_one_of, read, variables_of
from replicax.runtime.mesh import REPLICA_AXIS

#: Sums each array of a list over the replicas.
SumTogether: TypeAlias = Callable[[list[jax.Array]], list[jax.Array]]


def evaluate_joined(equations: Iterable[jex_core.JaxprEqn], values: Values, sum_together: SumTogether) -> None:
    """Evaluates equations as `interpreter.evaluate` does, inside `shard_map`, sums over the replicas together."""
    for others, sums in _rounds(equations):
        evaluate(others, values)
        operands = [read(atom, values) for equation in sums for atom in equation.invars]
        if operands:
            results = [out for equation in sums for out in equation.outvars]
            values.update(zip(results, sum_together(operands), strict=True))


def _rounds(equations: Iterable[jex_core.JaxprEqn]) -> list[tuple[list[jex_core.JaxprEqn], list[jex_core.JaxprEqn]]]:
    """Deals equations out to rounds: in each first what needs no sums but those of earlier rounds, then sums."""
    rounds: list[tuple[list[jex_core.JaxprEqn], list[jex_core.JaxprEqn]]] = []
    known_in: dict[jex_core.Var, int] = {}
    last_effect = 0
    for equation in equations:
        number = max((known_in.get(atom, 0) for atom in variables_of(equation.invars)), default=0)
        if equation.effects:  # Reads and writes of mutable arrays, and calls of the host, keep their order.
            number = last_effect = max(number, last_effect)
        is_sum = _is_joined(equation)
        known_in.update(dict.fromkeys(equation.outvars, number + is_sum))
        while len(rounds) <= number:
            rounds.append(([], []))
        rounds[number][is_sum].append(equation)
    return rounds


def _is_joined(equation: jex_core.JaxprEqn) -> bool:
    if not is_one_of(equation, SUMS_OVER_AXES) or equation.params.get("axis_index_groups") is not None:
        return False
    avals = [aval_of(atom) for atom in equation.invars]
    return tuple(equation.params["axes"]) == (REPLICA_AXIS,) and all(
        aval.size * aval.dtype.itemsize <= JOINED_BYTES for aval in avals
    )
