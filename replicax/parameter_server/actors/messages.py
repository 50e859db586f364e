"""The messages between coordinator, workers and servers: plain data, arrays and StableHLO, and no user code.

Programs, steps, iterators and resources are named by ids; `number` is the id of the message's own. Any `code` is
StableHLO that `jax.export` has serialised, with its signature beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

import numpy as np

#: Shape and dtype of each array of a pytree, in order.
ArraySpecs: TypeAlias = tuple[tuple[tuple[int, ...], np.dtype], ...]


class ShardId(NamedTuple):
    """Names a shard of a variable, the unit that servers store; a variable that is not sharded has shard 0 alone."""

    variable: int
    number: int


@dataclasses.dataclass(frozen=True)
class ServerProgram:
    """A server's half of a step: what it does with what a worker sends."""

    number: int  # the same on all servers, and of the `WorkerProgram`
    code: bytes  # `(updated, others, sent) -> new values of updated`
    updated: tuple[ShardId, ...]
    others: tuple[ShardId, ...]  # those that it reads only
    grown: tuple[ShardId | None, ...] = ()  # for each value that is sent, the shard of a growing table whose ids it has


class SentValue(NamedTuple):
    """The part of one of a worker's values that a server gets."""

    result: int  # index of the value among those that the worker sends
    bounds: tuple[int, int] | None = None  # first row and end; None for all of it
    table: int | None = None  # index of the table: only rows that were looked up are sent, with their indices


@dataclasses.dataclass(frozen=True)
class PulledVariable:
    """A variable that a worker's program reads."""

    servers: tuple[int, ...]  # of each shard
    shards: tuple[ShardId, ...]


@dataclasses.dataclass(frozen=True)
class PulledTable:
    """A table from which a worker's program reads the rows that a batch needs."""

    servers: tuple[int, ...]  # of each shard
    shards: tuple[ShardId, ...]
    bounds: tuple[tuple[int, int], ...]  # first row and end of each shard
    shape: tuple[int, ...]
    dtype: np.dtype
    capacity: int  # the most distinct rows that a batch needs
    indices: tuple[int, ...]  # which of the index arrays look up rows in it
    clips: tuple[bool, ...]  # for each of them, whether indices out of range are clipped
    grows: bool = False  # Indices are ids then, of which servers know the rows.


class InputSource(NamedTuple):
    """Where an input of a worker's program comes from."""

    kind: str  # "batch", "argument", "resource" or "worker" (the worker's index)
    number: int = 0  # id of the iterator or resource; index of the argument among the arrays of the call
    leaf: int = 0  # which array of the batch or resource
    turn: int = 0  # which batch, if the step takes several from one iterator


@dataclasses.dataclass(frozen=True)
class WorkerProgram:
    """A worker's half of a step."""

    number: int
    name: str  # of the function, for messages
    code: bytes  # `(variables, rows, positions, inputs) -> (results, sent)`
    variables: tuple[PulledVariable, ...]
    tables: tuple[PulledTable, ...]
    index_code: bytes | None  # `inputs -> index arrays`; None without tables
    inputs: tuple[InputSource, ...]
    specs: dict[int, ArraySpecs]  # of the batches of each iterator
    sends: dict[int, tuple[SentValue, ...]]  # to each server that takes part
    keeps: tuple[tuple[int, int], ...] = ()  # where the last results are stored: a resource, and the index of its array

    def turns(self) -> dict[int, int]:
        """Returns how many batches a step takes from each iterator."""
        turns: dict[int, int] = {}
        for source in self.inputs:
            if source.kind == "batch":
                turns[source.number] = max(turns.get(source.number, 0), source.turn + 1)
        return turns


class SetUp(NamedTuple):
    """A task that a worker does before the steps that rely on it."""

    kind: str  # "program", "dataset", "iterator", "resource", "servers" or "drop"
    args: tuple[object, ...]
    provides: Hashable = None  # for steps: the id of a dataset, iterator or resource, or `("program", id)`


class Report(NamedTuple):
    """A worker's answer to a ping."""

    node: str  # Ray's id of it
    pid: int
    platform: str  # the kind of device that it computes on
    set_up: int  # how many of its set-up tasks are done


@dataclasses.dataclass(frozen=True)
class StepCall:
    """One scheduled call, on its way to a worker."""

    number: int  # A step is applied once, however often it is tried.
    program: int
    arrays: tuple[np.ndarray, ...]  # those among the arguments
    at_least: tuple[int, ...]  # for each server, the version that the variables must have
    pull: bool  # Pull the newest variables before computing, even if the worker has some.
    ahead: bool  # Servers answer a push with the variables for the next step.
    set_up: int  # how many set-up tasks must be done before


@dataclasses.dataclass(frozen=True)
class Reply:
    """A server's answer to a push or pull."""

    version: int  # how many pushes and puts it has applied
    values: dict[ShardId, np.ndarray] | None  # None if they are those of the version that the worker has
    rows: tuple[np.ndarray, ...] = ()
    behind: int = 0  # pushes applied between the worker's pull and this push
    repeated: bool = False  # It had applied this step before.
    is_stale: bool = False  # The push was of an era that is over: nothing has been applied.
    is_unread: bool = False  # The buffer that the push named did not have its values: nothing has been applied.
    is_wired: bool = False  # The values are in the worker's buffer.

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return sum(array.nbytes for array in [*(self.values or {}).values(), *self.rows])


@dataclasses.dataclass(frozen=True)
class Done:
    """A step that has been made."""

    results: list[np.ndarray]
    versions: dict[int, int]  # for each server, the newest that the worker knows
    behind: dict[int, int]  # for each server that was pulled from and pushed to, how many pushes came in between
    seconds: dict[str, float]  # for "input", "pull", "compute" and "push"
    bytes_pulled: int
    bytes_pushed: int  # with the indices of the rows of tables that were pulled


@dataclasses.dataclass(frozen=True)
class UnexpectedBatch:
    """The worker's next batch has shapes that the program was not made for. The batch is not consumed."""

    iterator: int


@dataclasses.dataclass(frozen=True)
class ServerLost:
    """A server did not answer. It is unknown whether it has applied the step."""

    reason: str
