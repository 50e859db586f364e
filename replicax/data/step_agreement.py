"""All workers learn what each of them has for the coming steps, ahead of the computation.

A worker reads several steps ahead, tells in one message what it has for them, and reads on while the others' messages
arrive. So there is one exchange for several steps, in the thread that prefetches, and usually nobody waits. That goes
on through the passes of a loop: when all know that a pass ends with the steps that they have, they read the next one.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypedDict, TypeVar

from replicax.cluster.exchange import ClosedError
from replicax.data.position import Position
from replicax.data.worker_channel import WorkerChannel
from replicax.errors import BatchError

_Item = TypeVar("_Item")
_Note = TypeVar("_Note")
# A message for more steps costs less per step, but what is read ahead takes memory, and is lost if the loop ends early.
_MOST_BYTES = 64 * 2**20
_MOST_S = 0.1  # of reading
_FEW_STEPS = 16  # which may take longer


class Announcement(NamedTuple, Generic[_Item, _Note]):
    """The data that a worker has for a step, and what it tells the others of it."""

    item: _Item
    note: _Note  # for the other workers: not None, and something that JSON can hold
    size: int  # in bytes, while the item waits


class OpenedPass(NamedTuple, Generic[_Item]):
    """A pass of this worker over its data."""

    position: Position  # at which it begins
    items: Generator[_Item]


class Agreed(NamedTuple, Generic[_Item, _Note]):
    """A step on which all workers have agreed."""

    item: _Item | None  # this worker's; None if it has none
    notes: Sequence[_Note | None]  # of all workers
    begins: Position | None  # if this is the first step of a pass that follows another one: where that begins


class _Message(TypedDict, Generic[_Note]):
    """A worker's message on its next steps: notes, whether its data ends, with which error, and how far to read."""

    notes: list[_Note]
    end: bool
    error: str | None
    limit: int


def agree(
    passes: Iterator[OpenedPass[Announcement[_Item, _Note]]], channel: WorkerChannel | None, shortest: bool = False
) -> Generator[Agreed[_Item, _Note]]:
    """Yields the steps of all passes; after a pass without any there is no other.

    Args:
        passes: Those of this worker.
        channel: To the other workers; None if there are none.
        shortest: Whether a pass ends with the worker that has the fewest steps, and not with the one that has the most.
    """
    if channel is not None:
        return _chunks(_Reader(passes), channel, min if shortest else max)
    return (Agreed(item, [note], begins) for (item, note, _), begins in one_after_the_other(passes))


def one_after_the_other(passes: Iterator[OpenedPass[_Item]]) -> Generator[tuple[_Item, Position | None]]:
    """Yields the items of all passes, where there is nobody to agree with, and `Agreed.begins`."""
    begins: Position | None = None
    for number, (position, items) in enumerate(passes):
        begins, has_steps = position if number else None, position.rows > 0
        with contextlib.closing(items):
            for item in items:
                yield item, begins
                begins, has_steps = None, True
        if not has_steps:
            return


def _chunks(
    reader: _Reader[_Item, _Note], channel: WorkerChannel, steps_of_all: Callable[[Iterable[int]], int]
) -> Generator[Agreed[_Item, _Note]]:
    with contextlib.closing(reader):
        steps = 1
        chunk = reader.read(_StepChunk(steps))
        channel.publish(reader.message(chunk))
        while True:
            messages: list[_Message[_Note]] = [json.loads(message) for message in channel.collect()]
            told = [len(message["notes"]) for message in messages]
            filled = min([max(told), *(len(message["notes"]) for message in messages if message["error"] is not None)])
            reader.has_steps = reader.has_steps or steps_of_all(told) > 0
            has_failed = any(message["error"] is not None for message in messages)
            over = steps_of_all(not message["end"] for message in messages) == 0
            goes_on = not has_failed and (not over or reader.turn())
            steps = min(2 * steps, *(message["limit"] for message in messages))
            following: _StepChunk[_Item, _Note] = _StepChunk(steps, reader.position if over else None)
            # One step less to read it in: then its message is on its way when the others need it.
            at_a_time = -(-steps // max(1, filled - 1))
            for step in range(filled):
                notes = [message["notes"][step] if step < len(message["notes"]) else None for message in messages]
                yield Agreed(chunk.take(step), notes, chunk.begins if step == 0 else None)
                if goes_on and not following.published:
                    reader.read(following, at_a_time)
                    _publish_if_complete(reader, following, channel)
            _check_errors(reader, messages, channel)
            if not goes_on:
                return
            if not following.published:
                reader.read(following)
                _publish_if_complete(reader, following, channel)
            chunk = following


def _publish_if_complete(
    reader: _Reader[_Item, _Note], chunk: _StepChunk[_Item, _Note], channel: WorkerChannel
) -> None:
    if len(chunk.items) == chunk.steps or reader.ended:
        channel.publish(reader.message(chunk))
        chunk.published = True


def _check_errors(reader: _Reader[_Item, _Note], messages: list[_Message[_Note]], channel: WorkerChannel) -> None:
    if all(message["error"] is None for message in messages):
        return
    if reader.error is not None:
        raise reader.error  # as it is, after the steps before it
    names = channel.workers.names
    failed = "; ".join(f"{names[w]}: {m['error']}" for w, m in enumerate(messages) if m["error"] is not None)
    raise BatchError(f"The data of another worker failed, so that no worker can go on. {failed}")


class _StepChunk(Generic[_Item, _Note]):
    """The items of this worker for the next few steps."""

    def __init__(self, steps: int, begins: Position | None = None):
        self.steps, self.begins = steps, begins  # begins: as in `Agreed`, of the first one
        self.items: list[_Item | None] = []
        self.notes: list[_Note] = []
        self.seconds = 0.0  # that it took to read them
        self.published = False

    def take(self, step: int) -> _Item | None:
        """Returns the item of a step and drops the reference to it."""
        if step >= len(self.items):
            return None
        item, self.items[step] = self.items[step], None
        return item


class _Reader(Generic[_Item, _Note]):
    """Reads this worker's items into chunks, until the end of a pass or an error."""

    def __init__(self, passes: Iterator[OpenedPass[Announcement[_Item, _Note]]]):
        self._passes = passes
        self.position, self._items = next(passes)
        self.has_steps = self.position.rows > 0  # in this pass, for any worker
        self._largest = 1
        self.ended = False
        self.error: BaseException | None = None

    def turn(self) -> bool:
        """Goes on to the next pass; returns whether there is one."""
        self.close()
        opened = next(self._passes, None) if self.has_steps else None
        if opened is not None:
            self.position, self._items = opened
            self.has_steps = self.ended = False
        return opened is not None

    def close(self) -> None:
        """Ends this pass."""
        self._items.close()

    def read(self, chunk: _StepChunk[_Item, _Note], most: int | None = None) -> _StepChunk[_Item, _Note]:
        """Reads up to `most` more items into a chunk, as many as it has room for."""
        room = chunk.steps - len(chunk.items)
        began = time.perf_counter()
        for _ in range(room if most is None else min(most, room)):
            if self.ended:
                break
            try:
                item, note, size = next(self._items)
            except StopIteration:
                self.ended = True
            except ClosedError:
                raise
            except Exception as error:  # The others must be told: they would wait for this worker.
                self.ended, self.error = True, error
            else:
                chunk.items.append(item)
                chunk.notes.append(note)
                self._largest = max(self._largest, size)
        chunk.seconds += time.perf_counter() - began
        return chunk

    def message(self, chunk: _StepChunk[_Item, _Note]) -> bytes:
        """Returns the message to the other workers on a chunk."""
        error = None if self.error is None else f"{type(self.error).__name__}: {self.error}"[:2000]
        quickly = int(_MOST_S * len(chunk.items) / max(chunk.seconds, 1e-9))
        limit = max(1, min(max(_FEW_STEPS, quickly), _MOST_BYTES // self._largest))
        told: _Message[_Note] = {"notes": chunk.notes, "end": self.ended, "error": error, "limit": limit}
        return json.dumps(told, separators=(",", ":")).encode()
