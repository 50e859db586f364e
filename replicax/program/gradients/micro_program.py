"""One micro-batch as a program: traced once, and repeated with the variables that it assigns carried along."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import cast

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.compat.jax import axes_of_type, vary
from replicax.compat.jax_tracing import current_trace, tracing_anew
from replicax.context import ReplicaStateFrame
from replicax.contracts.strategy import or_null
from replicax.contracts.variable_access import VariableLike, aggregation_of, is_per_replica_variable, layout_of, name_of
from replicax.errors import ReplicaDivergenceError
from replicax.program.gradients.autodiff import Differentiation
from replicax.program.gradients.micro_batches import Batch, Group, MicroFrame
from replicax.program.hints.advice import advise_of_total
from replicax.program.hints.metric_totals import find_not_summable
from replicax.program.ir.interpreter import called
from replicax.program.ir.jaxprs import SHARE
from replicax.program.ir.scopes import scope_of
from replicax.program.library_state import defer_total, is_accumulator, share_of_total
from replicax.program.placeholders import placeholder, stacked_in_program
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.runtime.precision import adding_dtype
from replicax.values.aggregation import VariableAggregation, combine
from replicax.values.equality import difference


class State:
    """The variables that micro-batches assign, as this replica has them until all are done."""

    def __init__(self) -> None:
        self._frame = context.current().frame
        self._replicas = context.current().manual_replicas or 1
        self._values: dict[int, jax.Array] = {}
        self._written: dict[int, VariableLike] = {}
        self._how: dict[int, VariableAggregation] = {}

    def read(self, variable: VariableLike) -> jax.Array:
        """Returns the value of a variable, in front of the next micro-batch."""
        if id(variable) in self._values:
            return self._values[id(variable)]
        assert self._frame is not None
        value, frame = self._frame.read(variable), cast(ReplicaStateFrame, self._frame)
        if self._counts(variable) and not frame.holds(variable):
            value = share_of_total(variable, value, frame)
        return vary(value, REPLICA_AXIS) if _values_vary() else value

    def write(self, variable: VariableLike, value: jax.Array, how: VariableAggregation | None) -> None:
        """Notes the value of a variable after some micro-batches, and how it has to be combined over the replicas."""
        self._written[id(variable)], self._values[id(variable)] = variable, value
        if how is not None:
            self._how[id(variable)] = how

    def assign(self) -> None:
        """Makes the values those of the step, combined over the replicas."""
        assert self._frame is not None
        for variable in self._written.values():
            value = self._values[id(variable)]
            in_replica = context.current().manual_replicas is not None
            self._frame.write(variable, self._combined(variable, value) if in_replica else value)

    def _combined(self, variable: VariableLike, value: jax.Array) -> jax.Array:
        frame = cast(ReplicaStateFrame, self._frame)
        if self._counts(variable):
            return _marked(variable, value, defer_total(variable, frame))
        if is_per_replica_variable(variable):
            return value
        how = self._how.get(id(variable), VariableAggregation.NONE)
        value, why = difference(value, refused_if_different=how is VariableAggregation.NONE)
        if why is None:
            return value
        if how is VariableAggregation.NONE:
            raise ReplicaDivergenceError(name_of(variable), why.reason)
        return combine(value, why, how, self._replicas, name_of(variable))

    def _counts(self, variable: VariableLike) -> bool:
        return self._replicas > 1 and is_accumulator(variable)


class MicroProgram:
    """The program of each micro-batch of a group, on one replica."""

    def __init__(self, evaluation: Differentiation, values: list[jax.Array], batch: Batch, group: Group):
        parent, outside = context.current().frame, current_trace()
        assert parent is not None
        frames: list[MicroFrame] = []
        self._connected: list[bool] = []
        self._layouts = list(map(layout_of, evaluation.variables))
        self._values = values

        def micro_batch(
            values: list[jax.Array], parts: list[jax.Array]
        ) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
            frames.append(MicroFrame(parent, outside, _placeholder, _shown))
            part_of_rows = Fraction(group.rows, batch.rows) * context.current().part_of_rows
            with context.entered(frame=frames[-1], part_of_rows=part_of_rows), tracing_anew():
                args, kwargs = batch.arguments(parts)
                loss, aux, gradients = evaluation.own(values, args, kwargs)
            self._connected = [gradient is not None for gradient in gradients]
            found = [loss, *(gradient for gradient in gradients if gradient is not None)]
            return found, frames[-1].new_values(), aux

        # As one call of a compiled function the program can be evaluated without going through its operations.
        example = [part[0] for part in batch.stacked(group)]
        self._program, shapes = jax.make_jaxpr(jax.jit(micro_batch), return_shape=True)(values, example)
        self._sums, self._carried = len(shapes[0]), len(shapes[1])
        self._frame = frames[-1]
        kinds = iter(self._program.out_avals[: self._sums])
        loss, *gradients = evaluation.joins
        self._joins = [loss, *(join for join, flag in zip(gradients, self._connected, strict=True) if flag)]
        known = [next(kinds), *(next(kinds) if flag else None for flag in self._connected)]
        # Of the loss and the gradients.
        self.dtypes = [jnp.dtype(float) if each is None else each.dtype for each in known]
        self._check_totals()

    def _check_totals(self) -> None:
        current = context.current()
        if (current.manual_replicas or 1) == 1:
            return
        frame = cast(ReplicaStateFrame, current.frame)
        totals = {frame.number(each): each for each in self._frame.written.values() if is_accumulator(each)}
        if totals:
            for total in find_not_summable(scope_of(self._program, list(self._frame.placeholders.values()))):
                advise_of_total(current.strategy, "rx.accumulate_gradients", totals[total.number], total)

    def repeated(self, stacked: Sequence[jax.Array], state: State) -> tuple[list[jax.Array | None], list[jax.Array]]:
        """Works off the micro-batches; returns the sums of loss and gradients, and the stacked auxiliary arrays."""
        frame, placeholders = self._frame, list(self._frame.placeholders.values())
        given = {key: state.read(variable) for key, variable in (frame.inputs | frame.written).items()}
        zeros = [self._zero(i) for i in range(self._sums)]

        def body(
            carry: tuple[list[jax.Array], list[jax.Array]], parts: list[jax.Array]
        ) -> tuple[tuple[list[jax.Array], list[jax.Array]], list[jax.Array]]:
            sums, written = carry
            now = given | dict(zip(frame.written, written, strict=True))
            results = called(self._program, [*self._values, *parts], placeholders, [now[key] for key in frame.inputs])
            found, new = results[: self._sums], results[self._sums : self._sums + self._carried]
            triples = enumerate(zip(self._joins, sums, found, strict=True))
            sums = [self._placed(i, join(a, b.astype(a.dtype))) for i, (join, a, b) in triples]
            if _values_vary():
                new = [vary(value, REPLICA_AXIS) for value in new]
            return (sums, new), results[self._sums + self._carried :]

        (sums, new), aux = jax.lax.scan(body, (zeros, [given[key] for key in frame.written]), list(stacked))
        for (key, variable), value in zip(frame.written.items(), new, strict=True):
            state.write(variable, value, frame.how.get(key))
        known = iter(sums[1:])
        # None where the loss does not depend on a variable; in float32 where loss and gradients have fewer bits.
        return [sums[0], *(next(known) if flag else None for flag in self._connected)], aux

    def _zero(self, number: int) -> jax.Array:
        aval = self._program.out_avals[number]
        zero = jnp.zeros(aval.shape, adding_dtype(aval.dtype))
        return self._placed(number, vary(zero, REPLICA_AXIS) if REPLICA_AXIS in axes_of_type(aval) else zero)

    def _placed(self, number: int, value: jax.Array) -> jax.Array:
        """Returns a sum in the layout of its variable: no device needs more of it."""
        connected = [layout for layout, flag in zip(self._layouts, self._connected, strict=True) if flag]
        layout = connected[number - 1] if number else None
        return value if layout is None else jax.lax.with_sharding_constraint(value, layout)


def _values_vary() -> bool:
    """Returns whether this is a replica of several, where all values in a loss are typed as its own."""
    current = context.current()
    return current.manual_replicas is not None and or_null(current.strategy).num_replicas_in_sync > 1


def _placeholder(variable: VariableLike) -> jax.Array:
    if context.current().manual_replicas is None:
        return placeholder(variable, stacked_in_program(variable))
    value = placeholder(variable, None)
    return vary(value, REPLICA_AXIS) if _values_vary() else value


def _shown(variable: VariableLike, value: jax.Array) -> jax.Array:
    """Returns the placeholder of an accumulator so that the program shows that the replica counts on from it."""
    current = context.current()
    if (current.manual_replicas or 1) == 1 or not is_accumulator(variable):
        return value
    return _marked(variable, value, cast(ReplicaStateFrame, current.frame).number(variable))


def _marked(variable: VariableLike, value: jax.Array, number: int) -> jax.Array:
    is_mean = VariableAggregation.of(aggregation_of(variable)) is VariableAggregation.MEAN
    return value if is_mean else SHARE(value, number)
