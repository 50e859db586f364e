"""Copying the equations of a traced program as data, with what they call written out.

Evaluated once more, operation by operation, equations would get new types and notes, but that costs as much as tracing
them a second time. As data they cost a few microseconds each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import jax
from jax.extend import core as jex_core

from replicax.compat.jax import meshless
from replicax.compat.jax_equations import SourceInfo, called_from, is_on_mutable_array, run_as_one
from replicax.compat.jax_names import CALLS
from replicax.program.ir.interpreter import evaluate
from replicax.program.ir.jaxprs import (
    DECISION,
    Atom,
    Program,
    Values,
    called_program,
    is_literal,
    is_one_of,
    number_of,
    opened_program,
    variables_of,
)


def inlined(program: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """Inlines all calls of a program: one flat list of equations."""
    jaxpr, copy = program.jaxpr, _Copy(moves=False)
    results = copy.results_of(jaxpr, {var: var for var in [*jaxpr.constvars, *jaxpr.invars]})
    captured = [*zip(jaxpr.constvars, program.consts, strict=True), *copy.captured]
    parts = {"constvars": [var for var, _ in captured], "outvars": results, "eqns": copy.equations}
    return jex_core.ClosedJaxpr(jaxpr.replace(**parts), [const for _, const in captured])


def evaluate_as_one(
    jaxpr: jex_core.Jaxpr,
    equations: Sequence[jex_core.JaxprEqn],  # some of its equations, where they are traced again
    values: Values,
    wanted: Iterable[Atom],
) -> None:
    """Evaluates equations as one call of a function; of their results only those that are wanted go into `values`."""
    effects = {effect for equation in equations for effect in equation.effects}
    if any(map(is_on_mutable_array, effects)):  # It names the array, which may be made here.
        evaluate(equations, values)
        return
    made = {out for equation in equations for out in equation.outvars}
    outputs = [atom for atom in dict.fromkeys(variables_of(wanted)) if atom in made]
    read = dict.fromkeys(atom for equation in equations for atom in variables_of(equation.invars))
    inputs = [atom for atom in read if atom not in made]
    parts = {"constvars": [], "invars": inputs, "outvars": outputs, "eqns": equations, "effects": effects}
    results = run_as_one(
        "on_replicas", jex_core.ClosedJaxpr(jaxpr.replace(**parts), ()), [values[atom] for atom in inputs]
    )
    values.update(zip(outputs, results, strict=True))


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
        self._name, copy = name, _Copy(moves=True)
        atoms: dict[Atom, Atom] = {var: copy.variable(var) for var in inputs}
        invars = [atoms[var] for var in inputs]
        copy.add(equations, atoms)
        self._captured = [const for _, const in copy.captured]
        parts = {"constvars": [], "invars": [*invars, *(var for var, _ in copy.captured)], "eqns": copy.equations}
        parts |= {"outvars": [atoms[var] for var in outputs], "effects": set()}
        self._program = jex_core.ClosedJaxpr(jaxpr.replace(**parts), ())

    def __call__(self, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the values of the outputs, for values of the inputs; in a trace it is one call of a function."""
        return run_as_one(self._name, self._program, [*values, *self._captured])


class _Copy:
    """Copied equations, where the others are, or (if it `moves` them) in a place without a mesh."""

    # JAX notes with each value, each number and each equation the mesh of its place.

    def __init__(self, moves: bool):
        self._moves = moves
        self._types: dict[object, jax.core.AbstractValue] = {}
        self._source_of: Callable[[SourceInfo], SourceInfo] = lambda source: source
        self.equations: list[jex_core.JaxprEqn] = []
        #: Constants of called functions, each after the variable that stands for it.
        self.captured: list[tuple[jex_core.Var, jax.Array]] = []

    def variable(self, like: Atom) -> jex_core.Var:
        """Returns a new variable of the same type."""
        if like.aval not in self._types:
            self._types[like.aval] = meshless(like.aval) if self._moves else like.aval
        return jex_core.Var(self._types[like.aval])

    def add(self, equations: Iterable[jex_core.JaxprEqn], atoms: dict[Atom, Atom]) -> None:
        """Copies equations; `atoms` has what stands for each value."""
        for equation in equations:
            operands = [self._of(atom, atoms) for atom in equation.invars]
            if DECISION.is_on(equation):
                atoms[equation.outvars[0]] = operands[0]
            elif is_one_of(equation, CALLS):
                atoms.update(zip(equation.outvars, self._called(equation, operands), strict=True))
            else:
                results = list(map(self.variable, equation.outvars))
                atoms.update(zip(equation.outvars, results, strict=True))
                self.equations.append(self._equation(equation, operands, results))

    def results_of(self, program: Program, atoms: dict[Atom, Atom]) -> list[Atom]:
        """Copies the equations of a program, and returns what stands for its results."""
        jaxpr, _ = opened_program(program)
        self.add(jaxpr.eqns, atoms)
        return [self._of(atom, atoms) for atom in jaxpr.outvars]

    def _called(self, call: jex_core.JaxprEqn, operands: list[Atom]) -> list[Atom]:
        program, source_of = called_program(call), self._source_of
        assert program is not None
        jaxpr, consts = opened_program(program)
        captured = [(self.variable(var), const) for var, const in zip(jaxpr.constvars, consts, strict=True)]
        self.captured += captured
        self._source_of = lambda source: source_of(called_from(call.source_info, source))
        inputs = [*(var for var, _ in captured), *operands]
        results = self.results_of(program, dict(zip([*jaxpr.constvars, *jaxpr.invars], inputs, strict=True)))
        self._source_of = source_of
        return results

    def _equation(
        self, like: jex_core.JaxprEqn, operands: list[Atom], results: list[jex_core.Var]
    ) -> jex_core.JaxprEqn:
        source = self._source_of(like.source_info)
        if self._moves:
            return jex_core.new_jaxpr_eqn(operands, results, like.primitive, like.params, like.effects, source)
        copied: jex_core.JaxprEqn = like.replace(invars=operands, outvars=results, source_info=source)
        return copied

    def _of(self, atom: Atom, atoms: dict[Atom, Atom]) -> Atom:
        if not is_literal(atom):
            return atoms[atom]
        if not self._moves:
            return atom
        return jex_core.Literal(number_of(atom), meshless(atom.aval))
