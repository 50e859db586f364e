"""JAX's loops and branches in a replica function: values that start from a constant get the type of what follows.

In a replica function JAX types a value as varying over the replicas or not, and wants equal types of what goes into a
loop and what comes out of a round, and of the results of all branches. So a sum that starts from the constant 0.0 and
adds up a replica's rows is a `TypeError`, though any program for one device may be written like that. Where JAX refuses
one for this reason alone it is traced once more, with those values typed as varying that have to be. A value that
varies by its type only is none that differs: `program/ir/divergence.py` goes by the data.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core, source_info_util

import replicax.context as context
from replicax.compat.jax import axes_of_type, lax_modules, vary, varying_axes
from replicax.compat.jax_branches import retyped_branches
from replicax.compat.jax_equations import rules_replaced
from replicax.compat.jax_errors import differ_in_axis_only
from replicax.compat.jax_polynomial import retyped_polynomials
from replicax.compat.jax_solves import constants_keep_their_types, kept_types_of_constants
from replicax.compat.replacing import Name
from replicax.program.ir.divergence import find_divergence
from replicax.program.ir.interpreter import Interpreter, bind, evaluate, replace_programs
from replicax.program.ir.jaxprs import read, variables_of
from replicax.program.replicas.eager_frame import UndecidedError, may_differ
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import PyTree, PyTreeFunction
from replicax.values.equality import OWN_DATA


def control_flow_of_replicas() -> list[Name]:
    """Returns what stands for the loops, branches and solvers of `jax.lax`, and `closure_convert`, in replicas."""
    source_info_util.register_exclusion(__file__)  # A loop stands where the user has written it.
    wraps: dict[str, Callable[[PyTreeFunction], PyTreeFunction]] = {
        "scan": functools.partial(_loop, take_apart=_scan),
        "while_loop": functools.partial(_loop, take_apart=_while_loop),
        "fori_loop": functools.partial(_loop, take_apart=_fori_loop),
        "cond": functools.partial(_branches, take_apart=_cond),
        "switch": functools.partial(_branches, take_apart=_switch),
        # These want the type of a solution for what they begin with.
        "custom_root": _alike,
        "custom_linear_solve": _alike,
    }
    return [
        *(Name(module, name, wraps[name]) for module in lax_modules() for name in wraps if hasattr(module, name)),
        # By it `odeint` calls a function with a time that begins equal and comes to differ.
        *(Name(module, "closure_convert", _converted) for module in (jax, jax.custom_derivatives)),
        *retyped_polynomials(),  # JAX may compute them by a loop.
        *retyped_branches(REPLICA_AXIS, _all_varying),  # those of which each row takes one
        *kept_types_of_constants(),
    ]


# Which arguments are the functions, by name or position.


def _scan(
    call: PyTreeFunction, f: PyTreeFunction, init: PyTree, *args: PyTree, **kwargs: PyTree
) -> tuple[PyTreeFunction, PyTree]:
    def run(retyped: PyTreeFunction, start: PyTree) -> PyTree:
        def body(carry: PyTree, x: PyTree) -> PyTree:
            carry, y = f(carry, x)
            return retyped(carry), y

        return call(functools.wraps(f)(body), start, *args, **kwargs)

    return run, init


def _while_loop(
    call: PyTreeFunction, cond_fun: PyTreeFunction, body_fun: PyTreeFunction, init_val: PyTree
) -> tuple[PyTreeFunction, PyTree]:
    def run(retyped: PyTreeFunction, start: PyTree) -> PyTree:
        return call(cond_fun, functools.wraps(body_fun)(lambda carry: retyped(body_fun(carry))), start)

    return run, init_val


def _fori_loop(
    call: PyTreeFunction,
    lower: PyTree,
    upper: PyTree,
    body_fun: PyTreeFunction,
    init_val: PyTree,
    *args: PyTree,
    **kwargs: PyTree,
) -> tuple[PyTreeFunction, PyTree]:
    def run(retyped: PyTreeFunction, start: PyTree) -> PyTree:
        body = functools.wraps(body_fun)(lambda i, carry: retyped(body_fun(i, carry)))
        return call(lower, upper, body, start, *args, **kwargs)

    return run, init_val


def _cond(
    call: PyTreeFunction, pred: PyTree, true_fun: PyTree, false_fun: PyTree, *operands: PyTree, **kwargs: PyTree
) -> tuple[PyTreeFunction, list[PyTreeFunction]]:
    if not callable(true_fun) and len(operands) == 2:  # JAX's old order: each branch after its operand
        (first, second), (true_fun, false_fun) = (true_fun, operands[0]), (false_fun, operands[1])
        operands = (first, second)
        branches = [lambda x, _: true_fun(x), lambda _, x: false_fun(x)]
    else:
        branches = [true_fun, false_fun]
    return lambda branches: call(pred, *branches, *operands, **kwargs), branches


def _switch(
    call: PyTreeFunction, index: PyTree, branches: Sequence[PyTreeFunction], *operands: PyTree, **kwargs: PyTree
) -> tuple[PyTreeFunction, list[PyTreeFunction]]:
    return lambda branches: call(index, branches, *operands, **kwargs), list(branches)


# Tracing once more.


class _Types:
    """Which leaves of a carry, or of a result, have to vary."""

    def __init__(self) -> None:
        self.vary: list[bool] = []

    def note(self, tree: PyTree) -> bool:
        """Notes which leaves vary; returns whether one does that was not known to."""
        found = [REPLICA_AXIS in varying_axes(leaf) for leaf in jax.tree_util.tree_leaves(tree)]
        before = self.vary if len(self.vary) == len(found) else [False] * len(found)
        self.vary = [a or b for a, b in zip(before, found, strict=True)]
        return self.vary != before

    def retyped(self, tree: PyTree) -> PyTree:
        """Returns a tree with those leaves typed as varying."""
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        if len(leaves) != len(self.vary):
            return tree  # JAX says what is wrong with its structure.
        pairs = zip(leaves, self.vary, strict=True)
        return jax.tree_util.tree_unflatten(
            treedef, [vary(leaf, REPLICA_AXIS) if flag else leaf for leaf, flag in pairs]
        )


def _loop(original: PyTreeFunction, take_apart: PyTreeFunction) -> PyTreeFunction:
    @functools.wraps(original)
    def loop(*args: PyTree, **kwargs: PyTree) -> PyTree:
        def again() -> PyTree:
            run, start = take_apart(original, *args, **kwargs)
            types = _Types()
            types.note(start)
            while True:
                grown: list[bool] = []

                def retyped(carry: PyTree, grown: list[bool] = grown) -> PyTree:
                    grown.append(types.note(carry))
                    return types.retyped(carry)

                try:
                    return run(retyped, types.retyped(start))
                except (TypeError, ValueError):
                    if not any(grown):
                        raise

        return _or_again(original, args, kwargs, again)

    return loop


def _branches(original: PyTreeFunction, take_apart: PyTreeFunction) -> PyTreeFunction:
    @functools.wraps(original)
    def branch(*args: PyTree, **kwargs: PyTree) -> PyTree:
        def again() -> PyTree:
            run, branches = take_apart(original, *args, **kwargs)
            types = _Types()

            def noting(fn: PyTreeFunction) -> PyTreeFunction:
                @functools.wraps(fn)
                def noted(*operands: PyTree) -> PyTree:
                    result = fn(*operands)
                    types.note(result)
                    return types.retyped(result)

                return noted

            try:
                return run([noting(fn) for fn in branches])
            except (TypeError, ValueError):
                # By now all of them have been looked at.
                return run([noting(fn) for fn in branches])

        return _or_again(original, args, kwargs, again)

    return branch


def _alike(original: PyTreeFunction) -> PyTreeFunction:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def solve(*args: PyTree, **kwargs: PyTree) -> PyTree:
        if context.current().manual_replicas is None:
            return original(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        (_, function), (name, start), (_, solver), *_ = given.arguments.items()
        if any(_differs(each, start) for each in (function, functools.partial(solver, function))):
            given.arguments[name] = _varying(start)
        with constants_keep_their_types():
            return original(*given.args, **given.kwargs)

    return solve


def _converted(original: PyTreeFunction) -> PyTreeFunction:
    @functools.wraps(original)
    def closure_convert(fun: PyTreeFunction, *examples: PyTree) -> tuple[PyTreeFunction, list[jax.Array]]:
        if context.current().manual_replicas is None or not _differs(fun, *examples):
            converted, captured = original(fun, *examples)
            return converted, captured
        return _without_what_is_captured(fun, _varying(examples))

    return closure_convert


def _without_what_is_captured(fun: PyTreeFunction, examples: PyTree) -> tuple[PyTreeFunction, list[jax.Array]]:
    """Returns a function that takes what `fun` captures as further arguments, typed as varying already, and these."""
    program, shape = jax.make_jaxpr(fun, return_shape=True)(*examples)
    jaxpr, known = program.jaxpr, dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    own, rest = set(jaxpr.invars), []
    # All that follows from captured values alone is computed here, their change of type included: so a derivative by
    # them is summed outside of the function, not in each step of a solver.
    for equation in jaxpr.eqns:
        if equation.effects or own & set(variables_of(equation.invars)):
            own.update(equation.outvars)
            rest.append(equation)
        else:
            evaluate([equation], known)
    used = {atom for equation in rest for atom in variables_of(equation.invars)} | set(variables_of(jaxpr.outvars))
    # Others have no derivative: the function keeps them.
    captured = {v: value for v, value in known.items() if v in used and _is_differentiable(value)}

    def converted(*args: PyTree) -> PyTree:
        operands = jax.tree_util.tree_leaves(_varying(args[: len(examples)]))
        values = {**known, **dict(zip([*jaxpr.invars, *captured], [*operands, *args[len(examples) :]], strict=True))}
        evaluate(rest, values)
        return jax.tree_util.tree_unflatten(
            jax.tree_util.tree_structure(shape), [read(atom, values) for atom in jaxpr.outvars]
        )

    return converted, list(captured.values())


def _is_differentiable(value: jax.typing.ArrayLike) -> bool:
    return isinstance(value, jax.core.Tracer) and jnp.issubdtype(value.dtype, jnp.inexact)


def _differs(function: PyTreeFunction, *operands: PyTree) -> bool:
    """Returns whether operands or results of a function are typed as varying."""
    if any(REPLICA_AXIS in varying_axes(leaf) for leaf in jax.tree_util.tree_leaves(operands)):
        return True
    return any(REPLICA_AXIS in axes_of_type(each) for each in jax.make_jaxpr(function)(*operands).out_avals)


def _varying(tree: PyTree) -> PyTree:
    return jax.tree_util.tree_map(lambda leaf: vary(jnp.asarray(leaf), REPLICA_AXIS), tree)


def _all_varying(program: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """Returns a program retyped so that all its values vary, also those in its loops and branches."""
    own = [_varying(jnp.zeros(aval.shape, aval.dtype)) for aval in program.in_avals]
    return jax.make_jaxpr(lambda *args: _varying(_EVALUATE_VARYING.run(program, args)))(*own)


def _bind_varying(equation: jex_core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[jax.Array]:
    return bind(equation, _varying(inputs), **rules_replaced(replace_programs(equation, _all_varying), _all_varying))


_EVALUATE_VARYING = Interpreter({"pvary": lambda equation, inputs: _varying(inputs)}, other=_bind_varying)


def _or_again(original: PyTreeFunction, args: PyTree, kwargs: PyTree, again: Callable[[], PyTree]) -> PyTree:
    """Calls a function of JAX; if it refuses types that differ in the axis of the replicas alone, calls `again`."""
    if context.current().manual_replicas is None:
        return original(*args, **kwargs)
    call: Callable[[], PyTree] = lambda: original(*args, **kwargs)  # noqa: E731
    try:
        return _checked_op_by_op(original.__name__, call)
    except (TypeError, ValueError) as error:
        if not differ_in_axis_only(str(error), REPLICA_AXIS):
            raise
    return _checked_op_by_op(original.__name__, again)


def _checked_op_by_op(name: str, call: Callable[[], PyTree]) -> PyTree:
    """Returns `call()`; where operations run one by one, it is first checked for collectives that would hang in it."""
    if context.runs_eagerly() and (context.current().manual_replicas or 1) > 1:
        try:
            program = jax.make_jaxpr(call)()
        except UndecidedError:  # It says so again where the call is traced, too. A loop of so many rounds is not.
            return call()
        if find_divergence(program).split_meetings:
            by_value = [OWN_DATA if may_differ(const) else None for const in program.consts]
            find_divergence(program, by_value).check_meetings(f"jax.lax.{name}")
    return call()
