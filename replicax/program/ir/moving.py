"""Copying the equations of a traced program as data, with what they call written out.

Evaluated once more, operation by operation, equations would get new types and notes, but that costs as much as tracing
them a second time. As data they cost a few microseconds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np
from jax.extend import core as jex_core

from replicax.compat.jax import meshless
from replicax.compat.jax_equations import SourceInfo, called_from, run_as_one
from replicax.compat.jax_names import CALLS
from replicax.program.ir.jaxprs import (
    DECISION,
    Atom,
    Program,
    aval_of,
    called_program,
    is_literal,
    is_one_of,
    opened_program,
)


def inlined(program: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """Inlines all calls of a program: one flat list of equations."""
    jaxpr, copy = program.jaxpr, _Copy()
    atoms: dict[Atom, Atom] = {var: var for var in [*jaxpr.constvars, *jaxpr.invars]}
    results = copy.write_out(jaxpr, atoms)
    captured = [*zip(jaxpr.constvars, program.consts, strict=True), *copy.captured]
    parts = {"constvars": [var for var, _ in captured], "outvars": results, "eqns": copy.equations}
    return jex_core.ClosedJaxpr(jaxpr.replace(**parts), [const for _, const in captured])


class Moved:
    """Equations as a program for a place without a mesh, in which nothing is called."""

    # JAX notes with each value, each number and each equation the mesh of its place.

    def __init__(
        self,
        name: str,  # in profiles
        jaxpr: jex_core.Jaxpr,
        equations: Iterable[jex_core.JaxprEqn],  # without effects; no value varies over a mesh, no parameter names one
        inputs: Sequence[jex_core.Var],
        outputs: Sequence[Atom],
    ):
        self._name = name
        copy = _MeshlessCopy()
        atoms: dict[Atom, Atom] = {var: copy.variable(var) for var in inputs}
        variables = [atoms[var] for var in inputs]
        copy.add(equations, atoms)
        self._captured = copy.captured
        variables += [var for var, _ in self._captured]
        results = [atoms[var] for var in outputs]
        parts = {"constvars": [], "invars": variables, "outvars": results, "eqns": copy.equations, "effects": set()}
        self._program = jex_core.ClosedJaxpr(jaxpr.replace(**parts), ())

    def __call__(self, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the values of the outputs, for values of the inputs; in a trace it is one call of a function."""
        return run_as_one(self._name, self._program, [*values, *(const for _, const in self._captured)])


class _Copy:
    """Copied equations, for the place where the others have been traced."""

    def __init__(self) -> None:
        self.equations: list[jex_core.JaxprEqn] = []
        #: Constants of called functions, and what stands for them.
        self.captured: list[tuple[jex_core.Var, jax.Array]] = []

    def variable(self, like: Atom) -> jex_core.Var:
        return jex_core.Var(like.aval)

    def number(self, literal: jex_core.Literal) -> jex_core.Literal:
        return literal

    def equation(
        self, like: jex_core.JaxprEqn, operands: list[Atom], results: list[jex_core.Var], source: SourceInfo
    ) -> jex_core.JaxprEqn:
        copied: jex_core.JaxprEqn = like.replace(invars=operands, outvars=results, source_info=source)
        return copied

    def add(
        self,
        equations: Iterable[jex_core.JaxprEqn],
        atoms: dict[Atom, Atom],  # what stands for each value
        source_of: Callable[[SourceInfo], SourceInfo] = lambda source: source,
    ) -> None:
        """Copies equations, and adds their results to `atoms`."""
        for equation in equations:
            results: Sequence[Atom]
            operands = [self._of(atom, atoms) for atom in equation.invars]
            if DECISION.is_on(equation):
                results = operands
            elif is_one_of(equation, CALLS):
                results = self._called(equation, operands, source_of)
            else:
                results = made = list(map(self.variable, equation.outvars))
                self.equations.append(self.equation(equation, operands, made, source_of(equation.source_info)))
            atoms.update(zip(equation.outvars, results, strict=True))

    def write_out(
        self,
        program: Program,
        atoms: dict[Atom, Atom],
        source_of: Callable[[SourceInfo], SourceInfo] = lambda source: source,
    ) -> list[Atom]:
        """Copies the equations of a program, and returns what stands for its results."""
        jaxpr, _ = opened_program(program)
        self.add(jaxpr.eqns, atoms, source_of)
        return [self._of(atom, atoms) for atom in jaxpr.outvars]

    def _called(
        self,
        call: jex_core.JaxprEqn,
        operands: list[Atom],
        source_of: Callable[[SourceInfo], SourceInfo],
    ) -> list[Atom]:
        program = called_program(call)
        assert program is not None
        jaxpr, consts = opened_program(program)
        atoms: dict[Atom, Atom] = dict(zip(jaxpr.invars, operands, strict=True))
        captured = [(self.variable(var), const) for var, const in zip(jaxpr.constvars, consts, strict=True)]
        self.captured += captured
        atoms.update(zip(jaxpr.constvars, (var for var, _ in captured), strict=True))
        return self.write_out(program, atoms, lambda source: source_of(called_from(call.source_info, source)))

    def _of(self, atom: Atom, atoms: dict[Atom, Atom]) -> Atom:
        return self.number(atom) if is_literal(atom) else atoms[atom]


class _MeshlessCopy(_Copy):
    """Copied equations, for a place without a mesh."""

    def __init__(self) -> None:
        super().__init__()
        self._types: dict[object, jax.core.AbstractValue] = {}

    def variable(self, like: Atom) -> jex_core.Var:
        if like.aval not in self._types:
            self._types[like.aval] = meshless(like.aval)
        return jex_core.Var(self._types[like.aval])

    def number(self, literal: jex_core.Literal) -> jex_core.Literal:
        return jex_core.Literal(np.asarray(literal.val, aval_of(literal).dtype), meshless(literal.aval))

    def equation(
        self, like: jex_core.JaxprEqn, operands: list[Atom], results: list[jex_core.Var], source: SourceInfo
    ) -> jex_core.JaxprEqn:
        return jex_core.new_jaxpr_eqn(operands, results, like.primitive, like.params, like.effects, source)
