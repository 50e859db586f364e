"""A worker's program, compiled, and the rows of tables that it looks up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.export
import numpy as np

from replicax.errors import ArgumentError
from replicax.parameter_server.actors.growing_rows import owners
from replicax.parameter_server.actors.messages import PulledTable, ShardId, WorkerProgram

CompiledProgram: TypeAlias = jax.stages.Compiled | jax.stages.Wrapped
_LEAST_ROWS = 16
_PAST_THE_END = np.iinfo(np.int32).max


class LoadedProgram:
    """A program that a worker has compiled."""

    def __init__(self, program: WorkerProgram):
        self.program = program
        self.wanted: dict[int, tuple[ShardId, ...]] = {}  # for each server, the shards that are read completely
        for variable in program.variables:
            for server, shard in zip(variable.servers, variable.shards, strict=True):
                self.wanted[server] = (*self.wanted.get(server, ()), shard)
        self._compiled = compiled(program.code)
        self._indices = None if program.index_code is None else compiled(program.index_code)

    def look_ups(self, inputs: Sequence[jax.typing.ArrayLike]) -> list[TableLookUp]:
        """Returns which rows of each table a batch needs."""
        if self._indices is None:
            return []
        arrays = [np.asarray(index) for index in self._indices(list(inputs))]
        return [TableLookUp(table, [arrays[i] for i in table.indices]) for table in self.program.tables]

    def __call__(
        self, variables: Sequence[np.ndarray], look_ups: Sequence[TableLookUp], inputs: Sequence[jax.typing.ArrayLike]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns the results, and what is sent to servers."""
        rows, positions = [each.rows for each in look_ups], [each.positions for each in look_ups]
        results, sent = self._compiled(list(variables), rows, positions, list(inputs))
        return [np.asarray(result) for result in results], [np.asarray(value) for value in sent]


class TableLookUp:
    """The rows of one table that a batch needs, by arrays of row indices of shape `(..., 1)`."""

    def __init__(self, table: PulledTable, indices: Sequence[np.ndarray]):
        self.table = table
        count = table.shape[0]
        wanted = [
            np.clip(i, 0, count - 1) if clips and not table.grows else i
            for i, clips in zip(indices, table.clips, strict=True)
        ]
        flat = np.concatenate([index.ravel() for index in wanted])
        inside = (flat >= 0) & (table.grows | (flat < count))
        self.numbers, inverse = np.unique(flat[inside], return_inverse=True)  # the rows, each once
        if table.grows:
            inverse = self._order_by_owner()[inverse]
        ends = np.cumsum(np.bincount(self._owners(), minlength=len(table.bounds)))
        self._parts = {
            bounds: slice(end - size, end)
            for bounds, end, size in zip(table.bounds, ends.tolist(), np.diff(ends, prepend=0).tolist(), strict=True)
        }
        self._check_room()
        found = np.full(flat.shape, table.capacity, np.int32)  # past the end, where nothing is found
        found[inside] = inverse
        lengths = np.cumsum([index.size for index in wanted])[:-1]
        # For each index array, the position of each of its rows in `rows`.
        self.positions = [p.reshape(i.shape) for p, i in zip(np.split(found, lengths), wanted, strict=True)]
        self.rows = np.zeros((table.capacity, *table.shape[1:]), table.dtype)  # filled in as they arrive; then zeros

    def requests(self) -> dict[int, list[tuple[ShardId, np.ndarray, slice]]]:
        """Returns what to ask each server for: a shard, row indices in it, and their positions in `rows`."""
        found: dict[int, list[tuple[ShardId, np.ndarray, slice]]] = {}
        for server, shard, bounds in zip(self.table.servers, self.table.shards, self.table.bounds, strict=True):
            where = self._parts[bounds]
            if where.stop > where.start:
                found.setdefault(server, []).append((shard, self._in_shard(bounds), where))
        return found

    def _owners(self) -> np.ndarray:
        """Returns the index of the shard that has each row."""
        if self.table.grows:
            return owners(self.numbers, len(self.table.bounds))
        return np.searchsorted([end for _, end in self.table.bounds], self.numbers, side="right")

    def _order_by_owner(self) -> np.ndarray:
        """Sorts ids by the shards that have them; returns the new place of each."""
        order = np.argsort(self._owners(), kind="stable")
        self.numbers = self.numbers[order]
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return places

    def _check_room(self) -> None:
        for bounds, part in self._parts.items() if self.table.grows else ():
            if part.stop - part.start > bounds[1] - bounds[0]:
                raise ArgumentError(
                    f"A batch has {part.stop - part.start} different ids of a growing table for one server, which has "
                    f"room for {bounds[1] - bounds[0]} rows. Give the table a capacity of several batches' ids."
                )

    def _in_shard(self, bounds: tuple[int, int]) -> np.ndarray:
        """Returns the rows that are in one shard, by their indices there or, of a growing table, their ids."""
        found: np.ndarray = self.numbers[self._parts[bounds]] - (0 if self.table.grows else bounds[0])
        return found

    def sent(self, gradient: np.ndarray, bounds: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows of a gradient between two bounds: their indices, relative to the first bound, and the rows."""
        return self._in_shard(bounds).astype(np.int32), gradient[self._parts[bounds]]


def padded(numbers: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns indices of rows, and the rows, filled up to a power of two by indices past the end of any shard."""
    count = len(numbers)
    length = max(_LEAST_ROWS, 1 << max(count - 1, 0).bit_length())  # A server compiles for few lengths only.
    filled = np.full(length, _PAST_THE_END, np.int32)
    filled[:count] = numbers
    zeros = np.zeros((length - count, *rows.shape[1:]), rows.dtype)
    return filled, np.concatenate([rows, zeros])


def compiled(code: bytes, donate: Sequence[int] = ()) -> CompiledProgram:
    """Returns a program of `jax.export`, compiled for its shapes, or later, when called, if these are symbolic."""
    exported = jax.export.deserialize(bytearray(code))
    program = jax.jit(exported.call, donate_argnums=donate, keep_unused=True)
    if any(not isinstance(length, int) for aval in exported.in_avals for length in aval.shape):
        return program
    args, _ = jax.tree_util.tree_unflatten(exported.in_tree, exported.in_avals)
    shapes = jax.tree_util.tree_map(lambda aval: jax.ShapeDtypeStruct(aval.shape, aval.dtype), args)
    return program.lower(*shapes).compile()
