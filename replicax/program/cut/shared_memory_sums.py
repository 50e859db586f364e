"""Taking sums of gradients out of the replicas' map, where all replicas' devices share one memory.

An all-reduce gives every replica the sum. A step that is cut in two needs it in one place only, and on virtual devices
of the host that place can read what each replica has: the all-reduce's copies, and the replicas' waiting for one
another, are saved.
A sum over the replicas commutes with taking packs of arrays apart, so the packs need no sum either.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Sequence
from typing import TypeAlias

import jax
from jax.extend import core as jex_core
from jax.sharding import PartitionSpec

from replicax.compat.jax_names import REARRANGE, SHARD_MAP, SUMS_OVER_AXES
from replicax.program.ir.graph import Graph
from replicax.program.ir.interpreter import Interpreter, bind, pass_on
from replicax.program.ir.jaxprs import Values, aval_of, is_gradient, is_literal, is_one_of, variables_of
from replicax.runtime.mesh import REPLICA_AXIS

_Summed: TypeAlias = dict[jex_core.Var, jex_core.JaxprEqn]  # what is a sum, or a part of one, and the equation it is of


class UnsummedEvaluation:
    """Evaluates the equations of a step without the sums over replicas of values that are wanted unsummed."""

    def __init__(
        self, equations: Sequence[jex_core.JaxprEqn], wanted: Sequence[jex_core.Var], used: Collection[jex_core.Var]
    ):
        # The sums of `wanted` may be made by their consumer; values in `used` are needed as they are for other reasons.
        self._equations = equations
        self._maps: dict[int, tuple[set[int], set[int]]] = {}  # for each map its changed outputs, and the sums left out
        # Those of `wanted` that are left unsummed: an array of `rows` rows has `replicas * rows` rows instead, those of
        # the first replica first, and each replica's rows are on its devices.
        self.unsummed: set[jex_core.Var] = set()
        for equation, found in _origins(equations, wanted, used):
            outputs, sums = _sums_left_out(equation, found)
            if outputs:
                self._maps[id(equation)] = outputs, sums
                self.unsummed |= {found[i] for i in outputs}

    def __call__(self, values: Values) -> None:
        """Evaluates the equations; puts the results into `values`."""
        Interpreter(other=self._evaluated)(self._equations, values)

    def _evaluated(self, equation: jex_core.JaxprEqn, operands: Sequence[jax.Array]) -> Sequence[jax.Array]:
        change = self._maps.get(id(equation))
        return bind(equation, operands) if change is None else _mapped(equation, operands, *change)


def _origins(
    equations: Sequence[jex_core.JaxprEqn], wanted: Sequence[jex_core.Var], used: Collection[jex_core.Var]
) -> list[tuple[jex_core.JaxprEqn, dict[int, jex_core.Var]]]:
    """Returns the maps whose outputs are wanted and serve for nothing else: each with these outputs, by position."""
    producers = Graph(equations).producer
    uses = collections.Counter(atom for each in equations for atom in variables_of(each.invars))
    found: dict[int, tuple[jex_core.JaxprEqn, dict[int, jex_core.Var]]] = {}
    for var in wanted:
        origin, chain = var, [var]
        while (equation := producers.get(origin)) is not None and is_gradient(equation):
            [origin] = variables_of(equation.invars)
            chain.append(origin)
        if equation is None or not is_one_of(equation, {SHARD_MAP}) or any(each in used for each in chain):
            continue
        if [uses[each] for each in chain] == [0, *[1] * (len(chain) - 1)]:
            _, outputs = found.setdefault(id(equation), (equation, {}))
            outputs[equation.outvars.index(origin)] = var
    return list(found.values())


def _sums_left_out(mapped: jex_core.JaxprEqn, outputs: Collection[int]) -> tuple[set[int], set[int]]:
    """Returns which of some outputs of a map can do without their sum, and the sums (by `id`) that are left out."""
    jaxpr = mapped.params["jaxpr"]
    if mapped.params["mesh"].axis_names != (REPLICA_AXIS,) or not mapped.params.get("check_vma", True):
        return set(), set()
    sums: _Summed = {}
    kept: set[int] = set()
    for equation in jaxpr.eqns:
        if is_one_of(equation, SUMS_OVER_AXES) and _is_over_replicas(equation):
            sums.update(dict.fromkeys(equation.outvars, equation))
        elif is_one_of(equation, REARRANGE) and equation.invars[0] in sums:
            sums[equation.outvars[0]] = sums[equation.invars[0]]
        else:
            kept |= {id(sums[atom]) for atom in variables_of(equation.invars) if atom in sums}
    returned = {i: sums[atom] for i, atom in enumerate(jaxpr.outvars) if not is_literal(atom) and atom in sums}
    kept |= {id(it) for i, it in returned.items() if i not in outputs or not aval_of(jaxpr.outvars[i]).shape}
    left_out = {id(equation) for equation in sums.values()} - kept
    changed = {i for i, equation in returned.items() if id(equation) in left_out}
    return changed, left_out if changed else set()


def _is_over_replicas(equation: jex_core.JaxprEqn) -> bool:
    return equation.params["axes"] == (REPLICA_AXIS,) and equation.params.get("axis_index_groups") is None


def _mapped(
    mapped: jex_core.JaxprEqn, operands: Sequence[jax.Array], outputs: Collection[int], left_out: Collection[int]
) -> list[jax.Array]:
    """Returns the results of a map of which some sums are left out."""
    params = mapped.params

    def evaluated(equation: jex_core.JaxprEqn, inputs: Sequence[jax.Array]) -> Sequence[jax.Array]:
        return (pass_on if id(equation) in left_out else bind)(equation, inputs)

    def body(*args: jax.Array) -> list[jax.Array]:
        return Interpreter(other=evaluated).run(params["jaxpr"], args)

    specs = [PartitionSpec(REPLICA_AXIS) if i in outputs else spec for i, spec in enumerate(params["out_specs"])]
    run = jax.shard_map(body, mesh=params["mesh"], in_specs=tuple(params["in_specs"]), out_specs=specs)
    results: list[jax.Array] = run(*operands)
    return results
