"""Frames: where the values of variables live while a function is being traced.

A traced function must be pure, so reading or assigning a variable inside one touches a frame instead. A program has
one `ProgramFrame`; each `strategy.run` in it opens a `ReplicaFrame`, and each `rx.value_and_grad` an
`OverrideFrame` that lends the differentiated variables other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import jax

from replicax.compat.jax_tracing import (
    Trace,
    being_differentiated,
    note_inner_read,
    trace_readers_anew,
    trace_state,
    within_trace,
)
from replicax.context import RowsOwner, StateFrame
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import VariableLike, array_of, name_of
from replicax.errors import ProgramError
from replicax.program.accesses import Accesses
from replicax.program.ir.decisions import Decisions
from replicax.program.kept_layouts import KnownLayouts
from replicax.program.placeholders import placeholder, placeholder_of_component, stacked_in_program
from replicax.program.results import Counts
from replicax.program.row_updates import RowUpdates
from replicax.values.aggregation import VariableAggregation
from replicax.values.equality import Difference


# Not an `Exception`, so that the traced function's own handlers let it pass. It never reaches the user.
class VariablesCreatedError(BaseException):
    """Ends a tracing pass in which a loss created variables: traced again, the function will know them all."""


class _Frame:
    """The part all frames share: values written here, in order, and where they came from."""

    is_of_loss = False  # whether its function is being differentiated
    is_in_program = True  # whether its function is one that a strategy or `rx.function` runs, or inside of one

    def __init__(self, accesses: Accesses) -> None:
        # Whether a variable was created meanwhile, or used that has no value yet since a layer has created it.
        self.saw_new = False
        self.accesses = accesses
        self.written: dict[int, VariableLike] = {}  # id -> variable; holds the variable, so that ids stay unique
        #: Variables that a function has read which JAX differentiates with respect to their values.
        self.passed_by: dict[int, VariableLike] = {}
        self.row_updates = RowUpdates()
        self._values: dict[int, jax.Array] = {}
        self._trace = trace_state()
        self._differentiated: tuple[object, set[int]] = (self._trace, set())

    def write(self, variable: VariableLike, value: jax.Array) -> jax.Array:
        """Makes `value` the current value of `variable`."""
        if not self.is_here():
            raise ProgramError(
                f"Variable {name_of(variable)!r} was assigned inside a function that JAX traces on its own "
                "(the body of jax.lax.scan, cond, while_loop, jax.checkpoint, jax.grad or jax.jit). Values cannot "
                "leave it by assignment. For loops and branches that carry the variables they assign, use rx.lax.cond, "
                "rx.lax.switch, rx.lax.scan, rx.lax.while_loop or rx.lax.fori_loop; to differentiate, "
                "rx.value_and_grad. Or return the new value from that function and assign it afterwards."
            )
        self.accesses.assigned(variable)
        self.saw_new = self.saw_new or self._is_new(variable)
        self.written[id(variable)] = variable
        self._values[id(variable)] = value
        if self.is_in_program:
            trace_readers_anew(variable)
        return value

    def write_in_layer(self, variable: VariableLike, value: jax.Array) -> None:
        """Makes `value` the current value of `variable`, for a layer's forward pass."""
        self.write(variable, value)

    def lends(self, variable: VariableLike) -> bool:
        """Returns whether an enclosing function has given this one a value for `variable`."""
        return False

    def _is_new(self, variable: VariableLike) -> bool:
        # Keras's own loops take the values out of variables, and a step is given them.
        return array_of(variable) is None and not self.lends(variable)

    def is_here(self) -> bool:
        """Returns whether the running code is that of the frame's function, and no function that JAX traces inside."""
        return trace_state() == self._trace

    def forget(self, variable: VariableLike) -> None:
        """Drops what was assigned to `variable`: it has been given a value that outlives the trace."""
        self.accesses.given(variable)
        self.written.pop(id(variable), None)
        self._values.pop(id(variable), None)
        if self.is_in_program:
            trace_readers_anew(variable)

    def after_gradients(self, owner: RowsOwner, make: Callable[[], Callable[[float], None]]) -> object:
        """Returns an owner's work, to be done when the gradients of a loss are known; a backward pass calls this."""
        if trace_state() != self._trace:
            raise ProgramError(
                f"The gradient of {owner!r} was computed inside a function that JAX traces on its own (the body of "
                "jax.checkpoint, scan, cond, while_loop or jit), from which an update of its rows cannot come out. "
                "Call the layer outside of it."
            )
        # It is returned by `make`, now or at an earlier call for the owner: a function of the gradients' factor.
        return self.row_updates.waiting(owner, make)

    def update_rows(self, factor: float, refused: str | None, is_checked: bool) -> None:
        """Does what is to be done when the gradients of a loss are known; see `RowUpdates.update_rows`."""
        self.row_updates.update_rows(cast(StateFrame, self).read, factor, refused, is_checked)

    def update_rows_at_end(self, refused: str | None = None) -> None:
        """Does what is left when the function ends; see `RowUpdates.end`."""
        self.row_updates.end(cast(StateFrame, self).read, self.holds, refused)

    def note_made(self, variable: VariableLike) -> None:
        """Notes each variable that is made with a value."""
        self.saw_new = True
        self.accesses.made(variable)

    def note_read(self, variable: VariableLike, value: jax.Array) -> None:
        """Notes each value that a reader was given, and notes where a derivative passes it by."""
        trace = trace_state()
        if trace == self._trace:
            return
        if self.is_in_program:
            note_inner_read(variable)
        if trace != self._differentiated[0]:
            self._differentiated = trace, being_differentiated()
        # `jax.grad(loss)([w.value])` with a loss that reads `w` again finds that it does not depend on its argument.
        if id(value) in self._differentiated[1]:
            self.passed_by[id(variable)] = variable

    def note_changed(self, module: object) -> None:
        """Notes each module of flax before an attribute of it changes."""
        self.accesses.changes.note(module)

    def knows(self, module: object) -> bool:
        """Returns whether a module of flax was noted: it is one from outside of the function."""
        return self.accesses.changes.knows(module)

    def note_captured(self) -> None:
        """Notes that the function uses a per-replica value that it has captured."""
        self.accesses.captured = True

    def holds(self, variable: VariableLike) -> bool:
        """Returns whether `variable` was assigned in this frame."""
        return id(variable) in self._values

    def defers(self, variable: VariableLike) -> bool:
        """Returns whether `variable` is an accumulator: its replicas' values are combined when their function ends."""
        return False

    def new_values(self) -> list[jax.Array]:
        """Returns the last value of each written variable, in the order of `written`."""
        return [self._values[key] for key in self.written]


class TracedFrame(_Frame):
    """A frame that answers reads of what was not assigned with placeholders."""

    def __init__(self, outside: Trace, accesses: Accesses, placeholder_of: Callable[[VariableLike], jax.Array]):
        super().__init__(accesses)
        self.inputs: dict[int, VariableLike] = {}  # read before they were written
        self.placeholders: dict[int, jax.Array] = {}  # for the values of `inputs`, in the same order
        # The placeholders belong to a JAX trace that encloses that of the function.
        self._outside, self._placeholder_of = outside, placeholder_of

    def read(self, variable: VariableLike) -> jax.Array:
        """Returns the value of `variable`: the assigned one or a placeholder."""
        key = id(variable)
        if key in self._values:
            return self._values[key]
        if key not in self.placeholders:
            self.accesses.read(variable)
            self.inputs[key] = variable
            self.saw_new = self.saw_new or self._is_new(variable)
            with within_trace(self._outside):
                self.placeholders[key] = self._placeholder_of(variable)
        return self.placeholders[key]


class ProgramFrame(TracedFrame):
    """The variables of one program, in global (cross-replica) view, while its function is being traced."""

    def __init__(self, outside: Trace):
        super().__init__(outside, Accesses(), lambda variable: placeholder(variable, stacked_in_program(variable)))
        self.returned: Any = None  # what the caller of the function notes of its result
        # The strategy that the program runs under, and how many replicas take part, once they are known.
        self.strategy: StrategyBase | None = None
        self.replicas: int | None = None
        self.counts = Counts()
        self.layouts = KnownLayouts()
        self.in_update: dict[int, VariableLike] = {}  # by id: read only by the updates after the replicas
        self._in_replicas: set[int] = set()

    def note_replicas(self, read: Iterable[VariableLike], in_update: Iterable[VariableLike]) -> None:
        """Notes which variables replicas read, and which are read only by the update that comes after them."""
        self._in_replicas |= set(map(id, read))
        self.in_update |= {id(variable): variable for variable in in_update}
        for key in self._in_replicas & self.in_update.keys():
            del self.in_update[key]


class ReplicaFrame(TracedFrame):
    """The variables as one replica sees them, inside `shard_map`, while its function is being traced."""

    def __init__(self, outside: Trace, decisions: Decisions, accesses: Accesses):
        # It is made in the trace of the function, inside that of `shard_map`, which the placeholders belong to.
        super().__init__(outside, accesses, placeholder_of_component)
        self.decisions = decisions
        #: The accumulators that were read or assigned, by their ids, in their order.
        self.accumulators: dict[int, VariableLike] = {}
        self._deferred: dict[int, Callable[[jax.Array], jax.Array]] = {}

    def decide(self, value: jax.Array, refused_if_equal: bool) -> tuple[jax.Array, Difference | None]:
        """Decides whether a value may differ between replicas."""
        return self.decisions.take(value, refused_if_equal)

    def notes_plain_gradient(self) -> bool:
        """Notes each `jax.grad`; returns whether each replica differentiates for itself there."""
        self.decisions.plain_gradients += 1
        return self.decisions.differentiates_apart

    def number(self, variable: VariableLike) -> int:
        """Returns the position of an accumulator in `accumulators`."""
        self.accumulators.setdefault(id(variable), variable)
        return list(self.accumulators).index(id(variable))

    def defer(self, variable: VariableLike, aggregate: Callable[[jax.Array], jax.Array]) -> int:
        """Has `variable`, an accumulator until then, aggregated when the replica function ends; returns its number."""
        self._deferred[id(variable)] = aggregate
        return self.number(variable)

    def defers(self, variable: VariableLike) -> bool:
        return id(variable) in self._deferred

    def postpones(self, variable: VariableLike, how: VariableAggregation) -> bool:
        """Returns whether replicas keep what they assign to themselves for now, to combine it later."""
        return False

    def aggregate_deferred(self) -> None:
        """Ends the accumulators: makes them equal on all replicas."""
        for key, aggregate in self._deferred.items():
            self._values[key] = aggregate(self._values[key])


class OverrideFrame(_Frame):
    """Lends some variables other values (for differentiation); everything else comes from the enclosing frame."""

    is_of_loss = True

    def __init__(self, parent: StateFrame | None, variables: Iterable[VariableLike], values: Iterable[jax.Array]):
        parent = cast("ProgramFrame | ReplicaFrame | OverrideFrame | None", parent)
        super().__init__(Accesses() if parent is None else parent.accesses)
        self.parent = parent  # None outside of any program
        self.is_in_program = parent is not None and parent.is_in_program
        #: The ids of variables that a layer's forward pass has assigned here.
        self.written_in_layer: set[int] = set()
        self._lent = {id(variable): value for variable, value in zip(variables, values, strict=True)}
        self._taken: set[int] = set()

    def read(self, variable: VariableLike) -> jax.Array:
        """Returns the value assigned here, the lent one, or the enclosing frame's."""
        key = id(variable)
        if key in self._values:
            return self._values[key]
        if key in self._lent:
            self.accesses.read(variable)
            self._taken.add(key)
            return self._lent[key]
        self.saw_new = self.saw_new or self._is_new(variable)
        if self.parent is not None:
            return self.parent.read(variable)
        self.accesses.read(variable)
        return array_of(variable)

    def write_in_layer(self, variable: VariableLike, value: jax.Array) -> None:
        """Makes `value` the current value of `variable`; of one that is trained until the loss is known."""
        # As in Keras's own training on JAX, whose `stateless_call` returns values only of what is not trained: the
        # optimizer updates the value with respect to which the gradient was taken.
        self.write(variable, value)
        self.written_in_layer.add(id(variable))
        if id(variable) in self._lent:
            self.written.pop(id(variable))

    def lends(self, variable: VariableLike) -> bool:
        """Returns whether this function or an enclosing one was given a value for `variable`."""
        return id(variable) in self._lent or (self.parent is not None and self.parent.lends(variable))

    def was_lent(self, variable: VariableLike) -> bool:
        """Returns whether the lent value of `variable` was read."""
        return id(variable) in self._taken

    def holds(self, variable: VariableLike) -> bool:
        """Returns whether `variable` was assigned here or in an enclosing frame."""
        return super().holds(variable) or (self.parent is not None and self.parent.holds(variable))

    def number(self, variable: VariableLike) -> int:
        """Asks the replica's frame for the accumulator's number."""
        return self._of_replica().number(variable)

    def defer(self, variable: VariableLike, aggregate: Callable[[jax.Array], jax.Array]) -> int:
        """Passes the accumulator on to the replica's frame, which aggregates it at the end."""
        return self._of_replica().defer(variable, aggregate)

    def defers(self, variable: VariableLike) -> bool:
        """Asks the replica's frame."""
        return self.parent is not None and self.parent.defers(variable)

    def postpones(self, variable: VariableLike, how: VariableAggregation) -> bool:
        """Asks the replica's frame."""
        return self._of_replica().postpones(variable, how)

    def decide(self, value: jax.Array, refused_if_equal: bool) -> tuple[jax.Array, Difference | None]:
        """Passes the decision on to the replica's frame."""
        return self._of_replica().decide(value, refused_if_equal)

    def notes_plain_gradient(self) -> bool:
        """Asks the replica's frame."""
        return self._of_replica().notes_plain_gradient()

    def _of_replica(self) -> ReplicaFrame:
        """Returns the frame that decisions belong to, or one that passes them on."""
        assert self.parent is not None and not isinstance(self.parent, ProgramFrame)
        return cast(ReplicaFrame, self.parent)
