"""`ServerHalf`: one server's half of a step, as a function that can be exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import jax
import jax.export
import jax.numpy as jnp
from jax.extend.core import Var

from replicax.contracts.variable_access import VariableLike, dtype_of, name_of, shape_of
from replicax.errors import ProgramError
from replicax.parameter_server.actors.messages import SentValue, ShardId
from replicax.parameter_server.compiling.row_wise import NotByRowsError, evaluate_rows, has_entries_of_its_own
from replicax.parameter_server.compiling.tables import Table, moves_untouched_rows
from replicax.parameter_server.compiling.traced_step import TracedStep
from replicax.parameter_server.variables.remote import Home, home_of
from replicax.program.cut.split import Part
from replicax.program.ir.interpreter import evaluate_elsewhere
from replicax.program.ir.jaxprs import Values, aval_of, read
from replicax.tables.marks import grows, is_table

#: A value that a worker has sent: an array, or some rows of a table, after their indices.
_Arrived: TypeAlias = jax.Array | tuple[jax.Array, jax.Array]
_SentSpec: TypeAlias = jax.ShapeDtypeStruct | tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]


class _LookedUp(NamedTuple):
    """The gradient of a table's rows that a step has looked up."""

    leaf: Var  # the value of the program that it is a part of
    numbers: jax.Array  # indices of the rows; those past the end are padding
    rows: jax.Array

    def scattered(self, count: int) -> jax.Array:
        """Returns all `count` rows, zeros where none was looked up."""
        zeros = jnp.zeros((count, *self.rows.shape[1:]), self.rows.dtype)
        return zeros.at[self.numbers].add(self.rows, mode="drop")


class ServerHalf:
    """The part of a step that one server runs: `(updated, others, sent) -> new values of updated`."""

    def __init__(self, step: TracedStep, server: int, tables: Mapping[int, Table], lazy_rows: bool):
        self._step, self._lazy_rows = step, lazy_rows
        self._outputs = [
            (i, shard) for i, variable in enumerate(step.written) for shard in _shards_on(home_of(variable), server)
        ]
        self._parts = {i: step.split.part(i) for i, _ in self._outputs}
        self._tables, self._table_variables = _gradients_of(step, tables), list(tables)
        self.updated = [shard for _, shard in self._outputs]
        self.others: dict[ShardId, VariableLike] = {}  # the shards that it reads only
        self.sent: list[SentValue] = []  # what it takes from a worker, in order
        for i, shard in self._outputs:
            self._check_looked_up(i)
            for j in self._parts[i].inputs:
                needed = self._needed_shard(j, i, shard)
                if needed not in self.updated:
                    self.others[needed] = step.variables[j]
            for result in self._parts[i].sent:
                sent = self._sent_for(result, i, shard)
                if sent not in self.sent:
                    self.sent.append(sent)

    def grown(self) -> tuple[ShardId | None, ...]:
        """Returns, for each value that a worker sends, the shard of the growing table whose ids come with it."""
        return tuple(self._grown(sent) for sent in self.sent)

    def _grown(self, sent: SentValue) -> ShardId | None:
        if sent.table is None:
            return None
        variable = self._step.variables[self._table_variables[sent.table]]
        home = home_of(variable)
        part = 0 if len(home.bounds) == 1 else home.bounds.index(sent.bounds)
        return home.shards[part] if grows(variable) else None

    def _check_looked_up(self, output: int) -> None:
        written = self._step.written[output]
        if is_table(written) and not any(result in self._tables for result in self._parts[output].sent):
            raise ProgramError(
                f"The step {self._step.name!r} changes the table {name_of(written)!r} otherwise than by the gradients "
                "of rows that it looks up by ids of its batch, and on parameter servers a step changes no other rows. "
                "Compute the ids from the batch alone, and penalties from the rows that are looked up."
            )

    def _needed_shard(self, variable: int, output: int, shard: ShardId) -> ShardId:
        """Returns which shard of a variable the update of another variable's shard reads."""
        home, written = home_of(self._step.variables[variable]), self._step.written[output]
        if len(home.bounds) == 1:
            return ShardId(home.number, 0)
        if home.bounds != home_of(written).bounds:
            raise _not_by_rows(written, "reads a variable that is sharded differently")
        return ShardId(home.number, shard.number)

    def _sent_for(self, result: int, output: int, shard: ShardId) -> SentValue:
        variable = self._step.written[output]
        bounds, rows = home_of(variable).bounds[shard.number], shape_of(variable)[:1]
        if result in self._tables:
            return SentValue(result, (0, rows[0]) if bounds is None else bounds, self._tables[result])
        has_rows = bounds is not None and aval_of(self._step.split.sent[result]).shape[:1] == rows
        part = self._parts[output]
        if has_rows and has_entries_of_its_own(part.equations, part.sent[result]):
            has_rows = False
        return SentValue(result, bounds if has_rows else None)

    # Computing.

    def __call__(self, updated: list[jax.Array], others: list[jax.Array], sent: list[_Arrived]) -> list[jax.Array]:
        """Returns the new values."""
        state = dict(zip([*self.updated, *self.others], [*updated, *others], strict=True))
        arrived = dict(zip(self.sent, sent, strict=True))
        return [self._new_value(i, shard, state, arrived) for i, shard in self._outputs]

    def _new_value(
        self, output: int, shard: ShardId, state: dict[ShardId, jax.Array], arrived: dict[SentValue, _Arrived]
    ) -> jax.Array:
        part, variable = self._parts[output], self._step.written[output]
        bounds, full = home_of(variable).bounds[shard.number], shape_of(variable)[:1]
        values, by_row = self._known(output, shard, state)
        rows = None if bounds is None else bounds[1] - bounds[0]
        looked_up: _LookedUp | None = None
        for result, leaf in part.sent.items():
            sent = self._sent_for(result, output, shard)
            value = arrived[sent]
            if isinstance(value, tuple):
                looked_up = _LookedUp(leaf, *value)
                continue
            values[leaf] = value
            if sent.bounds is not None:
                by_row.add(leaf)
        if looked_up is not None:
            if self._by_touched_rows(output, part):
                return self._update_rows(output, part, values, by_row, looked_up)
            values[looked_up.leaf] = looked_up.scattered(full[0] if rows is None else rows)
            by_row.add(looked_up.leaf)
        if rows is None:
            evaluate_elsewhere(part.equations, values)
            return read(part.outvar, values)
        assert bounds is not None
        return self._by_rows(output, part, values, by_row, rows, bounds[0])

    def _known(self, output: int, shard: ShardId, state: dict[ShardId, jax.Array]) -> tuple[Values, set[Var]]:
        """Returns the values that an update reads, and which of them have the rows of the variable."""
        part, shape = self._parts[output], shape_of(self._step.written[output])
        values: Values = dict(part.consts)
        by_row: set[Var] = set()
        for j, var in part.inputs.items():
            values[var] = state[self._needed_shard(j, output, shard)]
            if shape and aval_of(var).shape[:1] == shape[:1]:
                by_row.add(var)
        return values, by_row

    def _by_rows(
        self, output: int, part: Part, values: Values, by_row: set[Var], rows: int, first: int | None = None
    ) -> jax.Array:
        variable = self._step.written[output]
        try:
            evaluate_rows(part.equations, values, by_row, shape_of(variable)[0], rows, first)
        except NotByRowsError as error:
            raise _not_by_rows(variable, str(error)) from error
        new = read(part.outvar, values)
        if isinstance(part.outvar, Var) and part.outvar in by_row:
            return new
        if first is None:
            raise _not_by_rows(variable, "computes the new value from no rows at all")
        return new[first : first + rows]

    def _update_rows(
        self, output: int, part: Part, values: Values, by_row: set[Var], looked_up: _LookedUp
    ) -> jax.Array:
        """Updates the rows that were looked up, and no others."""
        numbers, gradient = looked_up.numbers, looked_up.rows
        (own,) = [var for j, var in part.inputs.items() if self._step.variables[j] is self._step.written[output]]
        table = values[own]
        for var in by_row:
            values[var] = values[var].at[numbers].get(mode="fill", fill_value=1)  # Indices past the end are padding.
        values[looked_up.leaf] = gradient
        new = self._by_rows(output, part, values, {*by_row, looked_up.leaf}, gradient.shape[0])
        return table.at[numbers].set(new.astype(table.dtype), mode="drop")

    def _by_touched_rows(self, output: int, part: Part) -> bool:
        """Returns whether it is right to update nothing but the rows that were looked up."""
        written = self._step.written[output]
        own = [var for j, var in part.inputs.items() if self._step.variables[j] is written]
        if not own:
            return False
        if self._lazy_rows or is_table(written):
            return True
        state = list(part.inputs.values())
        (leaf,) = [self._step.split.sent[result] for result in part.sent if result in self._tables]
        others = [var for result, var in part.sent.items() if result not in self._tables]
        rows = shape_of(written)[:1]

        def two_rows(var: Var) -> jax.ShapeDtypeStruct:
            aval = aval_of(var)
            shape = (2, *aval.shape[1:]) if aval.shape[:1] == rows else aval.shape
            return jax.ShapeDtypeStruct(shape, aval.dtype)

        def update(tried: Sequence[jax.Array], gradient: jax.Array) -> list[jax.Array]:
            values: Values = dict(part.consts) | dict(zip([*state, *others], tried, strict=True)) | {leaf: gradient}
            by_row = {var for var in [*state, leaf] if aval_of(var).shape[:1] == rows}
            new = self._by_rows(output, part, values, by_row, 2)
            return [new if var in own else values[var] for var in [*state, *others]]

        try:
            with jax.ensure_compile_time_eval():
                return not moves_untouched_rows(update, [two_rows(v) for v in [*state, *others]], two_rows(leaf))
        except ProgramError:
            return False

    # Shapes.

    def shapes(self) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct], list[_SentSpec]]:
        """Returns the shapes of its arguments; the number of rows of a table is symbolic."""
        return (
            [self._shard_shape(shard) for shard in self.updated],
            [self._shard_shape(shard) for shard in self.others],
            self._sent_shapes(),
        )

    def _shard_shape(self, shard: ShardId) -> jax.ShapeDtypeStruct:
        everything = {home_of(v).number: v for v in [*self._step.variables, *self._step.written]}
        variable = everything[shard.variable]
        bounds, shape = home_of(variable).bounds[shard.number], shape_of(variable)
        shape = shape if bounds is None else (bounds[1] - bounds[0], *shape[1:])
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype_of(variable)))

    def _sent_shapes(self) -> list[_SentSpec]:
        tables = [sent for sent in self.sent if sent.table is not None]
        symbols = jax.export.symbolic_shape(", ".join(f"k{i}" for i in range(len(tables)))) if tables else ()
        lengths = dict(zip(tables, cast("Sequence[int]", symbols), strict=True))  # JAX takes symbols for ints.
        return [self._sent_shape(sent, lengths.get(sent)) for sent in self.sent]

    def _sent_shape(self, sent: SentValue, length: int | None) -> _SentSpec:
        aval = aval_of(self._step.split.sent[sent.result])
        if sent.table is not None:
            rows = jax.ShapeDtypeStruct((length, *aval.shape[1:]), aval.dtype)
            return jax.ShapeDtypeStruct((length,), jnp.int32), rows
        shape = aval.shape if sent.bounds is None else (sent.bounds[1] - sent.bounds[0], *aval.shape[1:])
        return jax.ShapeDtypeStruct(shape, aval.dtype)


def _gradients_of(step: TracedStep, tables: Mapping[int, Table]) -> dict[int, int]:
    """Returns the index of the table for each of the sent values that have the rows of a table."""
    found = {}
    for number, table in enumerate(tables.values()):
        for result, leaf in enumerate(step.split.sent):
            if leaf in table.by_row:
                found[result] = number
    return found


def _shards_on(home: Home, server: int) -> list[ShardId]:
    if home.copies:
        return [ShardId(home.number, 0)]
    return [shard for shard, where in zip(home.shards, home.servers, strict=True) if where == server]


def _not_by_rows(variable: VariableLike, why: str) -> ProgramError:
    return ProgramError(
        f"Variable {name_of(variable)!r} is sharded over servers, and each of them updates its own rows, but its "
        f"update {why}. Updates like LAMB's, which need the norm of a whole variable, are possible for variables that "
        "are not sharded: make a `variable_partitioner` that returns 1 for this one, or choose another optimizer. "
        "(Clipping by the global norm is no problem: workers do that.)"
    )
