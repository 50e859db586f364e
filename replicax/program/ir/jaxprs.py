"""Working on a traced program as data: writing its calls out, and evaluating some of its equations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeGuard, cast

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex_core

import replicax.compat.jax_equations as jax_equations
from replicax.compat.jax_names import CALLBACKS, CALLS
from replicax.program.ir.decisions import is_decision
from replicax.typing import PyTreeFunction

#: An operand of an equation.
Atom: TypeAlias = jex_core.Var | jex_core.Literal

#: The known values of a program while it is evaluated (NumPy's where they are numbers of the program).
Values: TypeAlias = dict[jex_core.Var, jax.Array]

_GRADIENT, _ROWS = "replicax_gradient", "replicax_rows"


def is_literal(atom: Atom) -> TypeGuard[jex_core.Literal]:
    """Returns whether an operand of an equation is a number that stands in the program."""
    return isinstance(atom, jex_core.Literal)


def variables_of(atoms: Iterable[Atom]) -> list[jex_core.Var]:
    """Returns the operands that are no numbers written into the program."""
    return [atom for atom in atoms if isinstance(atom, jex_core.Var)]


def aval_of(atom: Atom) -> jax.core.ShapedArray:
    """Returns the shape and dtype of an operand or a result of an equation."""
    return cast(jax.core.ShapedArray, atom.aval)


def opened_program(program: jex_core.ClosedJaxpr | jex_core.Jaxpr) -> tuple[jex_core.Jaxpr, Sequence[jax.Array]]:
    """Returns a program without its constants, and these; some equations call one that has none."""
    return (program.jaxpr, program.consts) if isinstance(program, jex_core.ClosedJaxpr) else (program, ())


def calls_host(program: jex_core.ClosedJaxpr | jex_core.Jaxpr) -> bool:
    """Returns whether a program calls functions of Python that may fail while it runs (`jax.pure_callback`, ...)."""
    jaxpr, _ = opened_program(program)
    return any(
        equation.primitive.name in CALLBACKS or any(map(calls_host, jex_core.jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


def constants_of(program: jex_core.ClosedJaxpr | jex_core.Jaxpr) -> Iterator[jax.Array]:
    """Yields the arrays that a program has captured, also those of functions that it calls."""
    jaxpr, consts = opened_program(program)
    yield from consts
    for equation in jaxpr.eqns:
        yield from (atom.val for atom in equation.invars if is_literal(atom))
        for each in jax.tree_util.tree_leaves(list(equation.params.values())):
            if isinstance(each, (jex_core.ClosedJaxpr, jex_core.Jaxpr)):
                yield from constants_of(each)


def inlined(program: jex_core.ClosedJaxpr, args: Sequence[jax.Array | jax.ShapeDtypeStruct]) -> jex_core.ClosedJaxpr:
    """Inlines all calls of a program: one flat list of equations. The `args` tell how inputs vary over the mesh."""

    def flat(*args: jax.Array) -> list[jax.Array]:
        return _written_out(program, args)

    return jax.make_jaxpr(flat)(*args)


def _written_out(
    program: jex_core.ClosedJaxpr | jex_core.Jaxpr, args: Sequence[jax.Array], in_place: bool = True
) -> list[jax.Array]:
    jaxpr, consts = opened_program(program)
    values: Values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    write_out(jaxpr.eqns, values, in_place)
    return [_read(atom, values, in_place) for atom in jaxpr.outvars]


def write_out(equations: Iterable[jex_core.JaxprEqn], values: Values, in_place: bool = True) -> None:
    """Evaluates equations as `evaluate` does, and in the place of calls what is called."""
    for equation in equations:
        call = CALLS.get(equation.primitive.name)
        if is_decision(equation):
            values[equation.outvars[0]] = _read(equation.invars[0], values, in_place)
        elif call is None:
            evaluate([equation], values, in_place)
        else:
            inputs = [_read(atom, values, in_place) for atom in equation.invars]
            results = _written_out(equation.params[call], inputs, in_place)
            values.update(zip(equation.outvars, results, strict=True))


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


def evaluate(equations: Iterable[jex_core.JaxprEqn], values: Values, in_place: bool = True) -> None:
    """Evaluates equations in their order and puts the results into `values`."""
    for equation in equations:
        inputs = [_read(atom, values, in_place) for atom in equation.invars]
        if in_place:  # where they have been traced, inside `jax.shard_map` for example
            results = bind(equation, inputs)
        else:
            # JAX has noted in each loop and condition the mesh that it was used on.
            params = {name: traced_anew(value, _elsewhere) for name, value in equation.params.items()}
            results = jax_equations.bind(equation, inputs, params)
        values.update(zip(equation.outvars, results, strict=True))


def _elsewhere(program: jex_core.ClosedJaxpr) -> Callable[..., list[jax.Array]]:
    return lambda *args: _written_out(program, args, in_place=False)


def traced_anew(parameter: object, function_of: Callable[[jex_core.ClosedJaxpr], PyTreeFunction]) -> object:
    """Returns a parameter of an equation with the programs in it (a loop's body, a branch) traced anew."""

    def anew(program: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in program.in_avals]
        return jax.make_jaxpr(function_of(program))(*shapes)  # a function that does what the program does

    return replaced_programs(parameter, anew)


def replaced_programs(parameter: object, other: Callable[[jex_core.ClosedJaxpr], jex_core.ClosedJaxpr]) -> object:
    """Returns a parameter of an equation with another program in the place of each in it."""
    if isinstance(parameter, jex_core.ClosedJaxpr):
        return other(parameter)
    if isinstance(parameter, tuple) and any(isinstance(part, jex_core.ClosedJaxpr) for part in parameter):
        return tuple(replaced_programs(part, other) for part in parameter)
    return parameter


def bind(equation: jex_core.JaxprEqn, inputs: Sequence[jax.Array], **changes: object) -> Sequence[jax.Array]:
    """Returns the results of an equation on other operands, and with some of its parameters changed."""
    # Settings that held where the user's code ran: how random bits are made, and the mesh, which holds there only.
    with equation.ctx.manager:
        return jax_equations.bind(equation, inputs, {**equation.params, **changes})


def leading_to(
    equations: Sequence[jex_core.JaxprEqn], wanted: Iterable[jex_core.Var], and_effects: bool = False
) -> tuple[list[jex_core.JaxprEqn], set[jex_core.Var]]:
    """Returns the equations, in order, that some values need, and all values that take part in that."""
    needed, chosen = set(wanted), []
    for equation in reversed(equations):
        if (and_effects and equation.effects) or any(out in needed for out in equation.outvars):
            chosen.append(equation)
            needed.update(variables_of(equation.invars))
    return chosen[::-1], needed


def read(atom: Atom, values: Values) -> jax.Array:
    """Returns the value of an operand."""
    return cast(jax.Array, atom.val) if isinstance(atom, jex_core.Literal) else values[atom]


def _read(atom: Atom, values: Values, in_place: bool) -> jax.Array:
    # JAX has noted with each number the mesh that it was used on.
    if isinstance(atom, jex_core.Literal) and not in_place:
        return cast(jax.Array, np.asarray(atom.val))
    return read(atom, values)


def marked_as_gradient(value: jax.Array) -> jax.Array:
    """Returns `value` so that programs show that it is a gradient. It costs nothing when they run."""
    marked: jax.Array = checkpoint_name(value, _GRADIENT)
    return marked


def is_gradient(equation: jex_core.JaxprEqn) -> bool:
    """Returns whether an equation marks a gradient."""
    return equation.primitive.name == "name" and equation.params["name"] == _GRADIENT


def marked_as_rows(value: jax.Array) -> jax.Array:
    """Returns random numbers that belong to rows of the global batch, so that programs show it."""
    marked: jax.Array = checkpoint_name(value, _ROWS)
    return marked


def draws_rows(jaxpr: jex_core.Jaxpr) -> bool:
    """Returns whether a program draws random numbers that belong to rows of the global batch."""
    return any(
        (equation.primitive.name == "name" and equation.params["name"] == _ROWS)
        or any(map(draws_rows, jex_core.jaxprs_in_params(equation.params)))
        for equation in jaxpr.eqns
    )


def is_mark(equation: jex_core.JaxprEqn) -> bool:
    """Returns whether an equation marks a gradient, or is a loop or a condition in which one is marked."""
    if equation.primitive.name == "name":
        return is_gradient(equation)
    if equation.primitive.name == "shard_map":
        return False  # Values that replicas differentiate are cut there.
    inner = jex_core.jaxprs_in_params(equation.params)
    return any(is_mark(equation) for jaxpr in inner for equation in jaxpr.eqns)
