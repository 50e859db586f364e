"""Variables in the bodies of loops and branches: they are carried, as code for JAX alone carries its state.

JAX traces the body of a loop or branch on its own, and no value leaves it by assignment. So a body is run with a frame
of its own: reads are answered from it, and what is assigned goes out as a part of the carry, or of the branch's
result. Which variables a body assigns is found by tracing it: when it assigns one that is not carried yet, that trace
is broken off and the next one carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

import replicax.context as context
from replicax.compat.jax_tracing import traced_apart
from replicax.contracts.variable_access import VariableLike, name_of
from replicax.errors import VariableError
from replicax.program.frames import OverrideFrame, VariablesCreatedError
from replicax.program.gradients.autodiff import made_equal, stored_by
from replicax.program.library_state import value_to_carry
from replicax.typing import PyTree, PyTreeFunction


class _MoreVariablesError(BaseException):
    """Ends the trace of a body that assigns variables which are not carried yet. It never reaches the user."""


class _BodyFrame(OverrideFrame):
    """The variables as a body sees them: those that are carried here, all others as around the loop or branch."""

    def __init__(self, variables: Sequence[VariableLike], values: Sequence[jax.Array]):
        super().__init__(context.current().frame, variables, values)
        self.is_of_loss = getattr(self.parent, "is_of_loss", False)
        self._carried = set(map(id, variables))

    def holds(self, variable: VariableLike) -> bool:
        """Returns whether `variable` was assigned here or around: the carried value counts as assigned."""
        return id(variable) in self._carried or super().holds(variable)


class Carried:
    """The variables that the bodies of one loop or branch assign."""

    def __init__(self, what: str):
        self._what = what
        self._variables: dict[int, VariableLike] = {}
        self._in_layer: set[int] = set()  # those of them that layers assign
        self._replica = context.current().replica if context.current().manual_replicas is not None else None

    def run(self, call: Callable[[list[jax.Array]], tuple[PyTree, list[jax.Array]]]) -> PyTree:
        """Calls JAX's function until all variables are carried, stores their last values, and returns its result."""
        while True:
            try:
                with traced_apart():
                    result, values = call(self._start())
                break
            except _MoreVariablesError:
                continue
        frame = context.current().frame
        for variable, value in zip(self._variables.values(), values, strict=True):
            value = value if self._replica is None else made_equal(variable, value, frame)
            stored_by(variable, value, frame, id(variable) in self._in_layer)
        return result

    def body(self, fn: PyTreeFunction, values: Sequence[jax.Array], *args: PyTree) -> tuple[PyTree, list[jax.Array]]:
        """Calls a body where JAX traces it; returns its result, and the variables' values at its end."""
        frame = _BodyFrame(list(self._variables.values()), values)
        with context.entered(frame=frame):
            result = fn(*args)
            frame.update_rows_at_end()
        if frame.saw_new and frame.parent is not None:
            raise VariablesCreatedError
        self._in_layer |= frame.written_in_layer
        new = [variable for key, variable in frame.written.items() if key not in self._variables]
        if new:
            self._variables.update((id(variable), variable) for variable in new)
            raise _MoreVariablesError
        return result, [
            self._last(frame, each, value) for each, value in zip(self._variables.values(), values, strict=True)
        ]

    def only_reads(self, fn: PyTreeFunction, values: Sequence[jax.Array], *args: PyTree) -> PyTree:
        """Calls a function that may read variables and assigns none, such as a loop's condition."""
        frame = _BodyFrame(list(self._variables.values()), values)
        with context.entered(frame=frame):
            result = fn(*args)
        for variable in frame.written.values():
            raise VariableError(
                f"Variable {name_of(variable)!r} is assigned by the condition of {self._what}, which only decides "
                "whether there is another round. Assign it in the body."
            )
        return result

    def _start(self) -> list[jax.Array]:
        return [value_to_carry(variable, context.current()) for variable in self._variables.values()]

    def _last(self, frame: _BodyFrame, variable: VariableLike, before: jax.Array) -> jax.Array:
        after = frame.read(variable)
        if (after.shape, after.dtype) != (before.shape, before.dtype):
            raise VariableError(
                f"Variable {name_of(variable)!r} has shape {before.shape} and dtype {before.dtype}, and a body of "
                f"{self._what} gives it shape {after.shape} and dtype {after.dtype}. A variable keeps its shape and "
                "dtype in loops and branches: each round, and each branch, must give it the same."
            )
        return after
