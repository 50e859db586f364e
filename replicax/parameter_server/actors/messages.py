"""The messages between coordinator, workers and servers: plain data, arrays and StableHLO, and no user code."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

import numpy as np

#: Shape and dtype of each array of a pytree, in order.
ArraySpecs: TypeAlias = tuple[tuple[tuple[int, ...], np.dtype], ...]


class ShardId(NamedTuple):
    """Identifies a shard of a variable, the unit that servers store; a variable that is not sharded has shard 0 alone.

    Attributes:
        variable: The variable's id.
        number: Which of the variable's shards.
    """

    variable: int
    number: int


@dataclasses.dataclass(frozen=True)
class ServerProgram:
    """A server's half of a step: what it does with what a worker sends.

    Attributes:
        number: The program's id, the same on all servers.
        code: StableHLO of `(updated, others, sent) -> new values of updated`, serialised by `jax.export`.
        updated: The shards that it updates.
        others: The shards that it reads only.
        grown: For each value that a worker sends, the shard of a growing table whose ids it has; None for others.
    """

    number: int
    code: bytes
    updated: tuple[ShardId, ...]
    others: tuple[ShardId, ...]
    grown: tuple[ShardId | None, ...] = ()


class SentValue(NamedTuple):
    """The part of one of a worker's values that a server gets.

    Attributes:
        result: Index of the value among those that the worker sends.
        bounds: First row and end, None for all of it.
        table: Index of the table whose rows these are: only those that were looked up are sent, with their indices.
            None for other values.
    """

    result: int
    bounds: tuple[int, int] | None = None
    table: int | None = None


@dataclasses.dataclass(frozen=True)
class PulledVariable:
    """A variable that a worker's program reads.

    Attributes:
        servers: For each shard, the server that has it.
        shards: The shards, in order.
    """

    servers: tuple[int, ...]
    shards: tuple[ShardId, ...]


@dataclasses.dataclass(frozen=True)
class PulledTable:
    """A table from which a worker's program reads the rows that a batch needs.

    Attributes:
        servers: For each shard, the server that has it.
        shards: The shards, in order.
        bounds: First row and end of each shard.
        shape: Shape of the table.
        dtype: Its dtype.
        capacity: The most distinct rows that a batch needs.
        indices: Which of the index arrays look up rows in it.
        clips: For each of them, whether indices out of range are clipped.
        grows: Whether it is a growing table: then indices are ids, of which servers know the rows.
    """

    servers: tuple[int, ...]
    shards: tuple[ShardId, ...]
    bounds: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    capacity: int
    indices: tuple[int, ...]
    clips: tuple[bool, ...]
    grows: bool = False


class InputSource(NamedTuple):
    """Where an input of a worker's program comes from.

    Attributes:
        kind: `"batch"`, `"argument"`, `"resource"` or `"worker"` (the worker's index).
        number: Id of the iterator or resource; index of the argument among the arrays of the call.
        leaf: Which array of the batch or resource.
        turn: Which batch, from 0, if the step takes several from one iterator.
    """

    kind: str
    number: int = 0
    leaf: int = 0
    turn: int = 0


@dataclasses.dataclass(frozen=True)
class WorkerProgram:
    """A worker's half of a step.

    Attributes:
        number: The program's id, the same on all workers and servers.
        name: The function's name, for messages.
        code: StableHLO of `(variables, rows, positions, inputs) -> (results, sent)`, serialised by `jax.export`.
        variables: The variables to pull.
        tables: The variables to pull rows of.
        index_code: StableHLO of `inputs -> index arrays`; None without tables.
        inputs: Where the inputs come from.
        specs: For each iterator, the shapes and dtypes of the batches' arrays that it is made for.
        sends: For each server that takes part, what to send there.
        keeps: Where the last results are stored: for each the id of a resource, and the index of an array in it.
    """

    number: int
    name: str
    code: bytes
    variables: tuple[PulledVariable, ...]
    tables: tuple[PulledTable, ...]
    index_code: bytes | None
    inputs: tuple[InputSource, ...]
    specs: dict[int, ArraySpecs]
    sends: dict[int, tuple[SentValue, ...]]
    keeps: tuple[tuple[int, int], ...] = ()

    def turns(self) -> dict[int, int]:
        """Returns how many batches a step takes from each iterator."""
        turns: dict[int, int] = {}
        for source in self.inputs:
            if source.kind == "batch":
                turns[source.number] = max(turns.get(source.number, 0), source.turn + 1)
        return turns


class SetUp(NamedTuple):
    """A task that a worker does before the steps that rely on it.

    Attributes:
        kind: `"program"`, `"dataset"`, `"iterator"`, `"resource"`, `"servers"` or `"drop"`.
        args: What it takes.
        provides: What steps need of it: the id of a dataset, iterator or resource, or `("program", id)`.
    """

    kind: str
    args: tuple[object, ...]
    provides: Hashable = None


class Report(NamedTuple):
    """A worker's answer to a ping.

    Attributes:
        node: The Ray node that it is on.
        pid: Id of its process there.
        platform: The kind of device that it computes on.
        set_up: How many of its set-up tasks are done.
    """

    node: str
    pid: int
    platform: str
    set_up: int


@dataclasses.dataclass(frozen=True)
class StepCall:
    """One scheduled call, on its way to a worker.

    Attributes:
        number: The step's id: a step is applied once, however often it is tried.
        program: Id of the program.
        arrays: The arrays among its arguments.
        at_least: For each server, the version that the variables must have.
        pull: Whether to pull the newest variables before computing, even if the worker has some.
        ahead: Whether servers answer a push with the variables for the next step.
        set_up: How many set-up tasks must be done.
    """

    number: int
    program: int
    arrays: tuple[np.ndarray, ...]
    at_least: tuple[int, ...]
    pull: bool
    ahead: bool
    set_up: int


@dataclasses.dataclass(frozen=True)
class Reply:
    """A server's answer to a push or pull.

    Attributes:
        version: How many pushes it has applied.
        values: The shards asked for; None if they are those of the version that the worker has.
        rows: The rows asked for.
        behind: How many pushes it had applied between the worker's pull and this push.
        repeated: Whether it had applied this step before.
        is_stale: Whether the push was of an era that is over; then nothing has been applied.
        is_unread: Whether what was pushed was not in the buffer that the push named; then nothing has been applied.
        is_wired: Whether the values are in the worker's buffer.
    """

    version: int
    values: dict[ShardId, np.ndarray] | None
    rows: tuple[np.ndarray, ...] = ()
    behind: int = 0
    repeated: bool = False
    is_stale: bool = False
    is_unread: bool = False
    is_wired: bool = False

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return sum(array.nbytes for array in [*(self.values or {}).values(), *self.rows])


@dataclasses.dataclass(frozen=True)
class Done:
    """A step that has been made.

    Attributes:
        results: Its results.
        versions: The newest version of each server that the worker has heard of.
        behind: For each server that was pushed to, by how many pushes the gradients were stale.
        seconds: What the time went into: `"input"`, `"pull"`, `"compute"`, `"push"`.
        bytes_pulled: Bytes that came from servers.
        bytes_pushed: Bytes that went to servers, also the indices of the rows of tables that were pulled.
    """

    results: list[np.ndarray]
    versions: dict[int, int]
    behind: dict[int, int]
    seconds: dict[str, float]
    bytes_pulled: int
    bytes_pushed: int


@dataclasses.dataclass(frozen=True)
class UnexpectedBatch:
    """The worker's next batch has shapes that the program was not made for. The batch is not consumed.

    Attributes:
        iterator: Id of the iterator.
    """

    iterator: int


@dataclasses.dataclass(frozen=True)
class ServerLost:
    """A server did not answer. It is unknown whether it has applied the step.

    Attributes:
        reason: What Ray said.
    """

    reason: str
