"""Moving equations of a traced program out of the mesh on which they were traced.

JAX notes with each value, each number and each equation the mesh of its place. Evaluated once more, operation by
operation, equations would get new notes, but that costs as much as tracing them a second time. Here they are copied as
data: a few microseconds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np
from jax.extend import core as jex_core

from replicax.compat.jax import meshless
from replicax.compat.jax_equations import SourceInfo, called_from, run_as_one
from replicax.compat.jax_names import CALLS
from replicax.program.ir.decisions import is_decision
from replicax.program.ir.jaxprs import Atom, aval_of, is_literal


class Moved:
    """Equations as a program for a place without a mesh, in which nothing is called."""

    def __init__(
        self,
        name: str,  # in profiles
        jaxpr: jex_core.Jaxpr,
        equations: Iterable[jex_core.JaxprEqn],  # without effects; no value varies over a mesh, no parameter names one
        inputs: Sequence[jex_core.Var],
        outputs: Sequence[Atom],
    ):
        self._name = name
        self._types: dict[object, jax.core.AbstractValue] = {}
        self._made: list[jex_core.JaxprEqn] = []
        #: Constants of called functions, and what stands for them.
        self._captured: list[tuple[jex_core.Var, jax.Array]] = []
        atoms: dict[Atom, Atom] = {var: self._new(var) for var in inputs}
        self._copy(equations, atoms, _itself)
        variables = [*(atoms[var] for var in inputs), *(var for var, _ in self._captured)]
        results = [atoms[var] for var in outputs]
        parts = {"constvars": [], "invars": variables, "outvars": results, "eqns": self._made, "effects": set()}
        self._program = jex_core.ClosedJaxpr(jaxpr.replace(**parts), ())

    def __call__(self, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the values of the outputs, for values of the inputs; in a trace it is one call of a function."""
        return run_as_one(self._name, self._program, [*values, *(const for _, const in self._captured)])

    def _copy(
        self,
        equations: Iterable[jex_core.JaxprEqn],
        atoms: dict[Atom, Atom],
        source_of: Callable[[SourceInfo], SourceInfo],
    ) -> None:
        for equation in equations:
            operands = [self._number(atom) if is_literal(atom) else atoms[atom] for atom in equation.invars]
            call = CALLS.get(equation.primitive.name)
            if is_decision(equation):
                results = operands
            elif call is not None:
                results = self._called(equation, equation.params[call], operands, source_of)
            else:
                results = [self._new(var) for var in equation.outvars]
                source = source_of(equation.source_info)
                self._made.append(
                    jex_core.new_jaxpr_eqn(
                        operands, results, equation.primitive, equation.params, equation.effects, source
                    )
                )
            atoms.update(zip(equation.outvars, results, strict=True))

    def _called(
        self,
        equation: jex_core.JaxprEqn,
        program: jex_core.ClosedJaxpr,
        operands: list[Atom],
        source_of: Callable[[SourceInfo], SourceInfo],
    ) -> list[Atom]:
        jaxpr, consts = (program.jaxpr, program.consts) if hasattr(program, "jaxpr") else (program, ())
        atoms = dict(zip(jaxpr.invars, operands, strict=True))
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            atoms[var] = self._new(var)
            self._captured.append((atoms[var], const))
        self._copy(jaxpr.eqns, atoms, lambda source: source_of(called_from(equation.source_info, source)))
        return [self._number(atom) if is_literal(atom) else atoms[atom] for atom in jaxpr.outvars]

    def _new(self, var: Atom) -> jex_core.Var:
        aval = var.aval
        if aval not in self._types:
            self._types[aval] = meshless(aval)
        return jex_core.Var(self._types[aval])

    def _number(self, literal: jex_core.Literal) -> jex_core.Literal:
        return jex_core.Literal(np.asarray(literal.val, aval_of(literal).dtype), meshless(literal.aval))


def _itself(source: SourceInfo) -> SourceInfo:
    return source
