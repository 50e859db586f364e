"""Programs with those that they call, as one graph: where a value comes from, through calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import jax
import numpy as np
from jax.extend import core as jex_core

from replicax.program.ir.graph import Graph
from replicax.program.ir.jaxprs import Atom, called_program, is_literal, opened_program

#: A number that stands in a program.
Constant: TypeAlias = jax.Array | np.ndarray
#: The source of an input of a program: a scope and an atom in it, or None and a constant; None if unknown.
_Given: TypeAlias = tuple["ProgramScope | None", Any]


class ProgramScope(Graph):
    """A program, or (with `operands`, its inputs) one call of a program inside of another."""

    def __init__(self, jaxpr: jex_core.Jaxpr, constants: Sequence[_Given], operands: Sequence[_Given] | None = None):
        super().__init__(jaxpr.eqns)
        self.jaxpr = jaxpr
        self.inputs = {var: i for i, var in enumerate(jaxpr.invars)} if operands is None else {}
        self._given = dict(zip(jaxpr.constvars, constants, strict=True))
        if operands is not None:
            self._given |= dict(zip(jaxpr.invars, operands, strict=True))
        self._calls: dict[int, ProgramScope] = {}

    def called(self, equation: jex_core.JaxprEqn) -> ProgramScope | None:
        """Returns the program that an equation calls, None if it is no call."""
        inner = called_program(equation)
        if inner is None:
            return None
        if id(equation) not in self._calls:
            jaxpr, constants = opened_program(inner)
            operands = [(self, atom) for atom in equation.invars]
            self._calls[id(equation)] = ProgramScope(jaxpr, [(None, const) for const in constants], operands)
        return self._calls[id(equation)]

    def origin(self, atom: Atom) -> _Given:
        """Returns where a value is made: its scope and atom there, or `(None, value)` for a constant."""
        scope: ProgramScope | None = self
        while scope is not None and not is_literal(atom):
            if atom in scope._given:
                scope, atom = scope._given[atom]
                continue
            equation = scope.producer.get(atom)
            inner = None if equation is None else scope.called(equation)
            if equation is None or inner is None:
                return scope, atom
            scope, atom = inner, inner.jaxpr.outvars[equation.outvars.index(cast(jex_core.Var, atom))]
        return (None, atom.val) if isinstance(atom, jex_core.Literal) else (None, atom)

    def maker(self, atom: Atom) -> tuple[ProgramScope, jex_core.JaxprEqn] | None:
        """Returns the equation that makes a value, and its scope; None for an input and a constant."""
        scope, made = self.origin(atom)
        equation = None if scope is None else scope.producer.get(made)
        return None if scope is None or equation is None else (scope, equation)


def scope_of(program: jex_core.ClosedJaxpr, placeholders: Sequence[jax.Array]) -> ProgramScope:
    """Returns a program to search in; `placeholders` are those of its constants that stand for values of variables."""
    unknown = {id(placeholder) for placeholder in placeholders}
    return ProgramScope(program.jaxpr, [(None, None if id(const) in unknown else const) for const in program.consts])


def equations_of(scope: ProgramScope) -> Iterator[tuple[ProgramScope, jex_core.JaxprEqn]]:
    """Yields the equations of a program and of what it calls, in order, each with its scope."""
    for equation in scope.jaxpr.eqns:
        yield scope, equation
        inner = scope.called(equation)
        if inner is not None:
            yield from equations_of(inner)
