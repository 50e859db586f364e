"""Tracing a function that reads and assigns variables: once, into a program that can be evaluated again and again."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
from jax.extend import core as jex_core

from replicax.compat.jax_errors import is_call_of_array
from replicax.compat.jax_tracing import Trace, current_trace, tracing_anew
from replicax.errors import TracedValueError
from replicax.program.captured_arrays import captured_error
from replicax.program.flax.modules import flax_error
from replicax.program.frames import ProgramFrame, VariablesCreatedError
from replicax.program.hints.foreign import explained_error
from replicax.program.ir.interpreter import called
from replicax.program.ir.jaxprs import Values
from replicax.program.keras.state import repeat_while_variables_are_created

_MISUSES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.UnexpectedTracerError,
)


class TracedFunction:
    """A traced function: its program, and what it does with variables."""

    def __init__(self, frame: ProgramFrame, program: jex_core.ClosedJaxpr):
        # Arguments -> the written variables' new values, then results. Its constants are the frame's placeholders, and
        # what the function has captured.
        self.program = program
        self.read, self.written = list(frame.inputs.values()), list(frame.written.values())
        self.placeholders = list(frame.placeholders.values())  # what stands in `program` for the values of `read`

    def __call__(
        self,
        values: Mapping[int, jax.Array],
        arrays: Sequence[jax.Array],
        evaluated: Callable[[Sequence[jex_core.JaxprEqn], Values], None] | None = None,
    ) -> tuple[dict[int, jax.Array], list[jax.Array]]:
        """Evaluates the program, in any JAX trace or none; takes and returns values of variables by their ids."""
        given = [values[id(variable)] for variable in self.read]
        found = called(self.program, arrays, self.placeholders, given, evaluated)
        new_values = dict(zip(map(id, self.written), found[: len(self.written)], strict=True))
        return new_values, found[len(self.written) :]


@dataclasses.dataclass
class Pass:
    """One pass of tracing a function."""

    frame: ProgramFrame
    function: TracedFunction | None = None  # None if the pass was broken off


def trace_function(
    name: str,
    call: Callable[[ProgramFrame, Sequence[jax.Array]], list[jax.Array]],
    arrays: Sequence[jax.Array | jax.ShapeDtypeStruct],
    new_frame: Callable[[Trace, Sequence[jax.Array]], ProgramFrame],
) -> list[Pass]:
    """Traces a function; again if variables were created on the way, for then it may do something else next time."""
    passes: list[Pass] = []

    def outer(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        outside = current_trace()

        def step(arrays: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
            passes.append(Pass(new_frame(outside, arrays)))
            with tracing_anew():
                leaves = call(passes[-1].frame, arrays)
            return passes[-1].frame.new_values(), leaves

        step.__name__ = step.__qualname__ = name
        # As one call of a compiled function the program can be evaluated without going through its operations.
        program = jax.make_jaxpr(jax.jit(step))(arrays)
        passes[-1].function = TracedFunction(passes[-1].frame, program)
        if passes[-1].frame.saw_new:
            raise VariablesCreatedError
        return []

    def one_pass() -> None:
        if passes and passes[-1].function is None:
            passes[-1].frame.accesses.lose()
        jax.eval_shape(outer, list(arrays))

    try:
        with _explained():
            repeat_while_variables_are_created(one_pass)
    except BaseException:
        for each in passes:
            each.frame.accesses.lose()
        raise
    # The last pass is what all later calls of the function do. Before it, if they do something else (a variable was
    # built there): what the first calls do, one pass for each.
    return _without_repetitions(passes)


def _without_repetitions(passes: Sequence[Pass]) -> list[Pass]:
    """Returns the complete passes among `passes`, each of which does something else than the one after it."""
    kept = [passes[-1]]
    for each in reversed(passes[:-1]):
        if each.function is not None and not each.frame.accesses.are_repeated_by(kept[0].frame.accesses):
            kept.insert(0, each)
    return kept


def explained_op_by_op() -> contextlib.AbstractContextManager[None]:
    """Traces a replica function that runs operation by operation: its arrays stand for all replicas' own."""
    return _explained(
        "Inside strategy.run an array stands for each replica's own value, also under rx.config.run_eagerly: print "
        "shows all of them, but it is not one number for an `if`, `float()`, an index or NumPy. Choose with "
        "jnp.where or jax.lax.cond, or return the array from strategy.run and look at it outside."
    )


_IN_A_TRACE = (
    "A function was being traced, and its Python needed a number that is only known when the compiled program runs (an "
    "`if` or `float()` on an array, NumPy on an array, or an array that an earlier trace had put into a list or "
    "attribute). Choose with jnp.where or jax.lax.cond, return values instead of storing them, print with "
    "jax.debug.print, or debug with rx.config.run_eagerly(True)."
)


@contextlib.contextmanager
def _explained(advice: str = _IN_A_TRACE) -> Iterator[None]:
    """Tells what to do instead when Python uses a traced value as a number, or gives it to TensorFlow or PyTorch."""
    try:
        yield
    except Exception as error:
        told = explained_error(error) or flax_error(error) or captured_error(error)
        if told is not None:
            raise told from None
        if is_call_of_array(error):
            error.add_note(
                "An array was called like a function. A variable's `value` is the array itself: write `v.value` "
                "without parentheses, or `v.read_value()`."
            )
        if not isinstance(error, _MISUSES):
            raise
        said = str(error).strip().splitlines()[0]
        raise TracedValueError(f"{advice} JAX said: {said}").with_traceback(error.__traceback__) from None
