"""Loops and branches that carry variables: `jax.lax`'s, whose bodies may read and assign variables."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Sequence

import jax
import numpy as np

import replicax.context as context
from replicax.checks import explained
from replicax.compat.jax_tracing import is_tracing
from replicax.errors import ArgumentError
from replicax.program.call_checks import check_function
from replicax.program.function import ProgramCache, WeakProgramCaches
from replicax.program.loops.carry import Carried
from replicax.typing import PyTree, PyTreeFunction
from replicax.values.tracebacks import entry_point

__all__ = ["cond", "fori_loop", "scan", "switch", "while_loop"]

_Values = list[jax.Array]


@entry_point
def cond(pred: PyTree, true_fun: PyTreeFunction, false_fun: PyTreeFunction, *operands: PyTree) -> PyTree:
    """Calls one of two functions; like `jax.lax.cond`, but they may read and assign variables.

    After it, a variable that one of them assigns has the value that the branch which was taken gives it. Variables are
    `rx.Variable`s, those of Keras (of layers, metrics, optimizers, seed generators) and those of flax's `nnx`. Outside
    of compiled functions the branch is simply called.

    Args:
        pred: A boolean or number without dimensions. In `strategy.run` it may be each replica's own: then what the
            branches assign to mirrored variables differs, and is refused.
        true_fun: Called with the operands if `pred` is true.
        false_fun: Called with them otherwise. Its result has the same structure, shapes and dtypes.
        operands: Pytrees of arrays.

    Returns:
        What the function returns.

    Raises:
        ArgumentError: `pred` has dimensions or is no boolean or number, or a branch cannot be called.
        VariableError: A branch gives a variable another shape or dtype.
        ReplicaDivergenceError: A mirrored variable would get values that differ between replicas.
        ProgramError: Replicas would wait for others that take another branch.

    Example:
        >>> import jax.numpy as jnp
        >>> from replicax import Variable, function
        >>> skipped = Variable(0)
        >>> @function
        ... def step(loss):
        ...     return cond(jnp.isfinite(loss), lambda: loss, lambda: 0.0 * skipped.assign_add(1))
        >>> float(step(3.0)), float(step(float("inf"))), int(skipped.value)
        (3.0, 0.0, 1)
    """
    for name, fn in (("true_fun", true_fun), ("false_fun", false_fun)):
        check_function(f"`{name}` of rx.lax.cond", fn)
    pred = _decider("pred", "rx.lax.cond", pred, "biuf", "a boolean or number") != 0
    if _runs_at_once():
        return (true_fun if pred else false_fun)(*operands)
    return _branches("rx.lax.cond", functools.partial(jax.lax.cond, pred), [true_fun, false_fun], operands)


@explained
@entry_point
def switch(index: PyTree, branches: Sequence[PyTreeFunction], *operands: PyTree) -> PyTree:
    """Calls one of several functions; like `jax.lax.switch`, but they may read and assign variables. See `cond`.

    Args:
        index: An integer without dimensions: the number of the function. One out of range is clamped.
        branches: The functions. All of them return the same structure, shapes and dtypes.
        operands: Pytrees of arrays: the functions' arguments.

    Returns:
        What the function returns.

    Raises:
        ArgumentError: There are no functions, or `index` has dimensions or is no integer.
        VariableError: As for `cond`.

    Example:
        >>> from replicax import Variable, function
        >>> calls = Variable([0, 0, 0])
        >>> count = [lambda i=i: calls.assign(calls.value.at[i].add(1)) for i in range(3)]
        >>> function(lambda i: switch(i, count))(2).tolist()
        [0, 0, 1]
    """
    branches = list(branches)
    if not branches:
        raise ArgumentError("rx.lax.switch needs at least one function to choose from, got none.")
    for i, fn in enumerate(branches):
        check_function(f"`branches[{i}]` of rx.lax.switch", fn)
    index = _decider("index", "rx.lax.switch", index, "iu", "an integer")
    if _runs_at_once():
        return branches[min(max(int(index), 0), len(branches) - 1)](*operands)

    def call(*args: PyTree) -> PyTree:
        return jax.lax.switch(index, args[: len(branches)], *args[len(branches) :])

    return _branches("rx.lax.switch", call, branches, operands)


@entry_point
def scan(
    f: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    init: PyTree = None,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> PyTree:
    """Calls a function for each of some rows; like `jax.lax.scan`, but it may read and assign variables.

    A round reads what the one before it has assigned. It may be differentiated (`rx.value_and_grad`), also with respect
    to variables that it assigns. Outside of compiled functions the whole loop is compiled, once for each `f`.

    Args:
        f: `(carry, x) -> (carry, y)`. The carry keeps its structure, shapes and dtypes.
        init: The first carry; None if all that is carried are variables.
        xs: Pytree of arrays whose first dimensions are rows, or None.
        length: Number of rounds, where there is no `xs`.
        reverse: Whether to begin with the last row.
        unroll: How many rounds are written out as one.

    Returns:
        The last carry, and the stacked `y`.

    Raises:
        VariableError: A round gives a variable another shape or dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> from replicax import Variable
        >>> total = Variable(0.0)
        >>> carry, totals = scan(lambda carry, x: (carry, total.assign_add(x)), xs=jnp.array([1.0, 2.0, 3.0]))
        >>> totals.tolist(), float(total.value)
        ([1.0, 3.0, 6.0], 6.0)
    """
    check_function("`f` of rx.lax.scan", f)
    looped: PyTreeFunction = functools.partial(jax.lax.scan, length=length, reverse=reverse, unroll=unroll)
    if _is_compiled_here():
        again = functools.partial(scan, length=length, reverse=reverse, unroll=unroll)
        return _compiled(f, ("scan", length, reverse, unroll), lambda f: functools.partial(again, f), (init, xs))
    if context.current().frame is None:
        with _op_by_op():
            return looped(f, init, xs)
    carried = Carried("rx.lax.scan")

    def call(values: _Values) -> tuple[PyTree, _Values]:
        def body(carry: tuple[PyTree, _Values], x: PyTree) -> tuple[tuple[PyTree, _Values], PyTree]:
            result, values = carried.body(f, carry[1], carry[0], x)
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise ArgumentError(f"`f` of rx.lax.scan returns a pair (carry, y), got {result!r:.100}.")
            return (result[0], values), result[1]

        (carry, values), ys = looped(body, (init, values), xs)
        return (carry, ys), values

    return carried.run(call)


@entry_point
def while_loop(
    cond_fun: Callable[[PyTree], PyTree], body_fun: Callable[[PyTree], PyTree], init_val: PyTree = None
) -> PyTree:
    """Calls a function while a condition holds; like `jax.lax.while_loop`, but it may read and assign variables.

    As in JAX it has no reverse derivative: the number of rounds is known only when they are done.

    Args:
        cond_fun: Takes the carry and says whether there is another round. It may read variables.
        body_fun: Takes the carry and returns the next one. It may read and assign variables.
        init_val: The first carry; None if all that is carried are variables.

    Returns:
        The last carry.

    Raises:
        VariableError: A round gives a variable another shape or dtype, or `cond_fun` assigns one.

    Example:
        >>> from replicax import Variable, function
        >>> x, rounds = Variable(100.0), Variable(0)
        >>> def halve(_):
        ...     x.assign(x / 2)
        ...     rounds.assign_add(1)
        >>> function(lambda: while_loop(lambda _: x.value > 1.0, halve))()
        >>> int(rounds.value)
        7
    """
    check_function("`cond_fun` of rx.lax.while_loop", cond_fun)
    check_function("`body_fun` of rx.lax.while_loop", body_fun)
    if _is_compiled_here():
        again = functools.partial(while_loop, cond_fun)
        variant = ("while_loop", id(cond_fun))
        return _compiled(body_fun, variant, lambda body_fun: functools.partial(again, body_fun), (init_val,))
    if context.current().frame is None:
        with _op_by_op():
            return jax.lax.while_loop(cond_fun, body_fun, init_val)
    carried = Carried("rx.lax.while_loop")

    def call(values: _Values) -> tuple[PyTree, _Values]:
        def goes_on(carry: tuple[PyTree, _Values]) -> PyTree:
            return carried.only_reads(cond_fun, carry[1], carry[0])

        def body(carry: tuple[PyTree, _Values]) -> tuple[PyTree, _Values]:
            return carried.body(body_fun, carry[1], carry[0])

        result: tuple[PyTree, _Values] = jax.lax.while_loop(goes_on, body, (init_val, values))
        return result

    return carried.run(call)


@entry_point
def fori_loop(
    lower: PyTree,
    upper: PyTree,
    body_fun: Callable[[PyTree, PyTree], PyTree],
    init_val: PyTree = None,
    *,
    unroll: int | bool | None = None,
) -> PyTree:
    """Calls a function with each integer of a range; like `jax.lax.fori_loop`, but it may read and assign variables.

    Args:
        lower: The first integer.
        upper: The integer after the last one.
        body_fun: `(i, carry) -> carry`. It may read and assign variables.
        init_val: The first carry; None if all that is carried are variables.
        unroll: How many rounds are written out as one; for bounds that Python knows.

    Returns:
        The last carry. It has a derivative where Python knows the bounds.

    Raises:
        VariableError: A round gives a variable another shape or dtype.

    Example:
        >>> from replicax import Variable
        >>> power = Variable(1)
        >>> def times_three(i, carry):
        ...     power.assign(power * 3)
        >>> fori_loop(0, 4, times_three)
        >>> int(power.value)
        81
    """
    check_function("`body_fun` of rx.lax.fori_loop", body_fun)
    if _is_compiled_here():
        if unroll is None:
            return _compiled(body_fun, ("fori_loop",), _from_to, (lower, upper, init_val))
        again = functools.partial(fori_loop, int(lower), int(upper), unroll=unroll)  # Known bounds can be written out.
        variant = ("fori_loop", int(lower), int(upper), unroll)
        return _compiled(body_fun, variant, lambda body_fun: functools.partial(again, body_fun), (init_val,))
    if context.current().frame is None:
        with _op_by_op():
            return jax.lax.fori_loop(lower, upper, body_fun, init_val, unroll=unroll)
    carried = Carried("rx.lax.fori_loop")

    def call(values: _Values) -> tuple[PyTree, _Values]:
        def body(i: jax.Array, carry: tuple[PyTree, _Values]) -> tuple[PyTree, _Values]:
            return carried.body(body_fun, carry[1], i, carry[0])

        result: tuple[PyTree, _Values] = jax.lax.fori_loop(lower, upper, body, (init_val, values), unroll=unroll)
        return result

    return carried.run(call)


def _from_to(body_fun: PyTreeFunction) -> PyTreeFunction:
    """Returns `fori_loop` with a body, as a function of the bounds and the carry."""
    return lambda lower, upper, init_val: fori_loop(lower, upper, body_fun, init_val)


def _branches(
    what: str, call: PyTreeFunction, branches: Sequence[PyTreeFunction], operands: tuple[PyTree, ...]
) -> PyTree:
    """Calls `call(*branches, *operands)`, JAX's function, with branches that carry variables."""
    if context.current().frame is None:
        return call(*branches, *operands)
    carried = Carried(what)

    def carrying(fn: PyTreeFunction) -> PyTreeFunction:
        return lambda values, *operands: carried.body(fn, values, *operands)

    return carried.run(lambda values: call(*map(carrying, branches), values, *operands))


def _runs_at_once() -> bool:
    """Returns whether the code runs outside of programs, and of all that JAX traces."""
    return context.current().frame is None and not is_tracing()


def _is_compiled_here() -> bool:
    """Returns whether a loop becomes a program of its own."""
    return _runs_at_once() and not context.runs_eagerly()


def _op_by_op() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which JAX's loops run round by round, outside of programs under `run_eagerly`."""
    return jax.disable_jit() if _runs_at_once() else contextlib.nullcontext()


def _compiled(fn: PyTreeFunction, variant: Hashable, looped: PyTreeFunction, args: tuple[PyTree, ...]) -> PyTree:
    """Runs a loop as a program of its own."""
    programs = _programs().get(fn, variant, lambda get_fn: ProgramCache(lambda: looped(get_fn())))
    return programs(args, {})


@functools.cache
def _programs() -> WeakProgramCaches[ProgramCache]:
    """Returns the programs of loops that run outside of programs."""
    return WeakProgramCaches()


def _decider(name: str, what: str, value: PyTree, kinds: str, wanted: str) -> jax.Array | np.ndarray:
    """Returns the argument that chooses a branch, checked alike in programs and outside of them."""
    as_array = getattr(value, "__jax_array__", None)  # Variables have it.
    array = value if as_array is None else as_array()
    array = array if isinstance(array, jax.Array) else np.asarray(array)
    kind = "f" if jax.dtypes.issubdtype(array.dtype, np.floating) else array.dtype.kind  # NumPy's of bfloat16 is "V".
    if array.shape != ():
        raise ArgumentError(
            f"`{name}` of {what} decides for one call: {wanted} without dimensions, got shape {array.shape}."
        )
    if kind not in kinds:
        raise ArgumentError(f"`{name}` of {what} is {wanted} without dimensions, got {value!r:.100} ({array.dtype}).")
    return array
