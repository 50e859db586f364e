"""Evaluating traced programs equation by equation, by rules: where that is traced, it makes a new program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.extend import core as jex_core

import replicax.compat.jax_equations as jax_equations
from replicax.compat.jax_names import CALLS, NAME
from replicax.program.ir.jaxprs import DECISION, Program, Values, called_program, is_literal, opened_program, read

#: Evaluates an equation: (equation, values of its operands) -> values of its results.
Rule: TypeAlias = Callable[[jex_core.JaxprEqn, list[Any]], Sequence[Any]]


class Interpreter:
    """Evaluates equations, each by the rule for its primitive.

    Values are arrays, or what the rules make of them: a shard of an array, some of its rows.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule] | None = None,  # by the names of primitives
        enters: Collection[str] = (),  # calls in whose place the called program is evaluated
        other: Rule | None = None,  # the rule for all other primitives; None: `bind`
        value_of: Callable[[jex_core.Literal], Any] = lambda number: number.val,  # of numbers that stand in a program
    ):
        self._rules = dict.fromkeys(enters, self.enter) | dict(rules or {})
        self._other, self._value_of = other or bind, value_of

    def __call__(self, equations: Iterable[jex_core.JaxprEqn], values: dict[Any, Any]) -> None:
        """Evaluates equations in their order and puts the results into `values`."""
        for equation in equations:
            rule = self._rules.get(equation.primitive.name, self._other)
            inputs = [self._value_of(atom) if is_literal(atom) else values[atom] for atom in equation.invars]
            values.update(zip(equation.outvars, rule(equation, inputs), strict=True))

    def run(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        jaxpr, consts = opened_program(program)
        values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))
        self(jaxpr.eqns, values)
        return [self._value_of(atom) if is_literal(atom) else values[atom] for atom in jaxpr.outvars]

    def enter(self, equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> list[Any]:
        """Returns the results of a call, by evaluating what it calls."""
        program = called_program(equation)
        assert program is not None
        return self.run(program, inputs)

    def retraced(self, equation: jex_core.JaxprEqn) -> dict[str, object]:
        """Returns the parameters of an equation, in which programs (a loop's body, a branch) are evaluated likewise."""

        def anew(program: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
            kinds = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in program.in_avals]
            return jax.make_jaxpr(lambda *args: self.run(program, args))(*kinds)

        return replace_programs(equation, anew)


def bind(equation: jex_core.JaxprEqn, inputs: Sequence[jax.Array], **changes: object) -> Sequence[jax.Array]:
    """Returns the results of an equation on other operands, and with some of its parameters changed."""
    # Settings that held where the user's code ran: how random bits are made, and the mesh, which holds there only.
    with equation.ctx.manager:
        return jax_equations.bind(equation, inputs, {**equation.params, **changes})


def pass_on(equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    """The rule for an equation that has no effect here: its results are its operands."""
    del equation
    return inputs


def replace_programs(
    equation: jex_core.JaxprEqn, other: Callable[[jex_core.ClosedJaxpr], jex_core.ClosedJaxpr]
) -> dict[str, object]:
    """Returns the parameters of an equation, with another program in the place of each in them."""

    def replaced(value: object) -> object:
        if isinstance(value, jex_core.ClosedJaxpr):
            return other(value)
        if isinstance(value, tuple) and any(isinstance(part, jex_core.ClosedJaxpr) for part in value):
            return tuple(map(replaced, value))
        return value

    return {name: replaced(value) for name, value in equation.params.items()}


#: Evaluates equations where they have been traced, inside `jax.shard_map` for example.
evaluate = Interpreter()


def _bind_elsewhere(equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[jax.Array]:
    return jax_equations.bind(equation, inputs, evaluate_elsewhere.retraced(equation))


def _name_elsewhere(equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    return inputs if DECISION.is_on(equation) else _bind_elsewhere(equation, inputs)


#: Evaluates equations in another place: JAX has noted with each number, and in each loop, the mesh that it was used on.
evaluate_elsewhere = Interpreter({NAME: _name_elsewhere}, CALLS, _bind_elsewhere, lambda number: np.asarray(number.val))


def called(
    program: jex_core.ClosedJaxpr,
    args: Sequence[jax.Array],
    placeholders: Sequence[jax.Array],  # arrays that the traced function has used in the places of `values`
    values: Sequence[jax.Array],
    evaluated: Callable[[Sequence[jex_core.JaxprEqn], Values], None] | None = None,
) -> list[jax.Array]:
    """Returns the results of a program, inside the JAX trace in which it was made or one enclosed by that."""
    given = {id(placeholder): value for placeholder, value in zip(placeholders, values, strict=True)}
    jaxpr, consts = program.jaxpr, [given.get(id(const), const) for const in program.consts]
    known: Values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    (evaluated or evaluate)(jaxpr.eqns, known)
    return [read(atom, known) for atom in jaxpr.outvars]
