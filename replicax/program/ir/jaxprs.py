"""Traced programs as data: what they consist of, and what is marked in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeGuard, cast

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex_core

from replicax.compat.jax_names import CALLBACKS, ENTERED, NAME, SHARD_MAP

#: An operand of an equation.
Atom: TypeAlias = jex_core.Var | jex_core.Literal
#: Some equations call a program that has no constants.
Program: TypeAlias = jex_core.ClosedJaxpr | jex_core.Jaxpr
_PROGRAMS = jex_core.ClosedJaxpr, jex_core.Jaxpr
#: The known values of a program while it is evaluated (NumPy's where they are numbers of the program).
Values: TypeAlias = dict[jex_core.Var, jax.Array]


def is_literal(atom: Atom) -> TypeGuard[jex_core.Literal]:
    """Returns whether an operand of an equation is a number that stands in the program."""
    return isinstance(atom, jex_core.Literal)


def variables_of(atoms: Iterable[Atom]) -> list[jex_core.Var]:
    """Returns the operands that are no numbers written into the program."""
    return [atom for atom in atoms if isinstance(atom, jex_core.Var)]


def aval_of(atom: Atom) -> jax.core.ShapedArray:
    """Returns the shape and dtype of an operand or a result of an equation."""
    return cast(jax.core.ShapedArray, atom.aval)


def number_of(literal: jex_core.Literal) -> np.ndarray:
    """Returns a number that stands in the program, without the mesh that JAX has noted with it."""
    return np.asarray(literal.val, aval_of(literal).dtype)


def read(atom: Atom, values: Values) -> jax.Array:
    """Returns the value of an operand."""
    return cast(jax.Array, atom.val) if isinstance(atom, jex_core.Literal) else values[atom]


def is_one_of(equation: jex_core.JaxprEqn, names: Collection[str]) -> bool:
    """Returns whether an equation is an operation of one of some names, see `compat/jax_names.py`."""
    return equation.primitive.name in names


def opened_program(program: Program) -> tuple[jex_core.Jaxpr, Sequence[jax.Array]]:
    """Returns a program without its constants, and these."""
    return (program.jaxpr, program.consts) if isinstance(program, jex_core.ClosedJaxpr) else (program, ())


def called_program(equation: jex_core.JaxprEqn) -> Program | None:
    """Returns the program that an equation calls on its operands, None if it is no call."""
    parameter = ENTERED.get(equation.primitive.name)
    return None if parameter is None else equation.params[parameter]


def programs_in(equation: jex_core.JaxprEqn) -> list[jex_core.Jaxpr]:
    """Returns what an equation calls, its branches, or the body of its loop, without their constants."""
    return [opened_program(each)[0] for each in _programs_in(equation)]


def _programs_in(equation: jex_core.JaxprEqn) -> list[Program]:
    found: list[Program] = []
    for value in equation.params.values():
        if isinstance(value, tuple):
            found.extend(each for each in value if isinstance(each, _PROGRAMS))
        elif isinstance(value, _PROGRAMS):
            found.append(value)
    return found


def equations_in(program: Program) -> Iterator[jex_core.JaxprEqn]:
    """Yields the equations of a program and those in them, at any depth; each before what is in it."""
    for equation in opened_program(program)[0].eqns:
        yield from with_inner(equation)


def with_inner(equation: jex_core.JaxprEqn) -> Iterator[jex_core.JaxprEqn]:
    """Yields an equation, and then those in it, at any depth."""
    yield equation
    for jaxpr in programs_in(equation):
        yield from equations_in(jaxpr)


def constants_of(program: Program) -> Iterator[jax.Array]:
    """Yields the arrays that a program has captured, also those of functions that it calls."""
    jaxpr, consts = opened_program(program)
    yield from consts
    for equation in jaxpr.eqns:
        yield from (atom.val for atom in equation.invars if is_literal(atom))
        for each in _programs_in(equation):
            yield from constants_of(each)


def calls_host(program: Program) -> bool:
    """Returns whether a program calls functions of Python that may fail while it runs (`jax.pure_callback`, ...)."""
    return any(is_one_of(equation, CALLBACKS) for equation in equations_in(program))


class Mark:
    """Shows in programs what a value is, by JAX's `name` operation: an identity that costs nothing when it runs."""

    def __init__(self, kind: str):
        self._beginning = f"replicax_{kind}_"

    def __call__(self, value: jax.Array, number: int = 0) -> jax.Array:
        """Returns `value`, marked; the number tells those of a kind apart."""
        marked: jax.Array = checkpoint_name(value, f"{self._beginning}{number}")
        return marked

    def number(self, equation: jex_core.JaxprEqn) -> int | None:
        """Returns the number of the mark that an equation is, None if it is none of this kind."""
        if equation.primitive.name != NAME or not str(equation.params["name"]).startswith(self._beginning):
            return None
        return int(equation.params["name"].removeprefix(self._beginning))

    def is_on(self, equation: jex_core.JaxprEqn) -> bool:
        """Returns whether an equation is a mark of this kind."""
        return self.number(equation) is not None


#: A decision by whether a value is equal on all replicas, see `program/ir/decisions.py`.
DECISION = Mark("decision")
#: Random numbers that belong to rows of the global batch.
ROWS = Mark("rows")
#: A loss whose gradients are summed over replicas.
SUMMED_LOSS = Mark("summed_loss")
#: A value from which a replica counts on towards a metric's total, and one that it assigns to the total.
SHARE, TOTAL = Mark("share"), Mark("total")

marked_as_gradient = Mark("gradient")


def is_gradient(equation: jex_core.JaxprEqn) -> bool:
    """Returns whether an equation marks a gradient."""
    return marked_as_gradient.is_on(equation)


def is_mark(equation: jex_core.JaxprEqn) -> bool:
    """Returns whether an equation marks a gradient, or is a loop or a condition in which one is marked."""
    if equation.primitive.name == SHARD_MAP:
        return False  # Values that replicas differentiate are cut there.
    return is_gradient(equation) or any(is_mark(each) for jaxpr in programs_in(equation) for each in jaxpr.eqns)
