"""All workers learn what each of them has for the coming steps, ahead of the computation.

A worker reads several steps ahead, tells in one message what it has for them, and reads on while the others' messages
arrive. So there is one exchange for several steps, in the thread that prefetches, and usually nobody waits.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from typing import Generic, NamedTuple, TypedDict, TypeVar

from replicax.cluster.exchange import ClosedError
from replicax.data.worker_channel import WorkerChannel
from replicax.errors import BatchError

_Item = TypeVar("_Item")
_Note = TypeVar("_Note")
# A message for more steps costs less per step, but what is read ahead takes memory.
_MOST_STEPS = 16
_MOST_BYTES = 64 * 2**20


class Announcement(NamedTuple, Generic[_Item, _Note]):
    """The data that a worker has for a step, and what it tells the others of it."""

    item: _Item
    note: _Note  # for the other workers: not None, and something that JSON can hold
    size: int  # in bytes, while the item waits


class _Message(TypedDict, Generic[_Note]):
    """A worker's message on its next steps: notes, whether its data ends, with which error, and how far to read."""

    notes: list[_Note]
    end: bool
    error: str | None
    limit: int


def agree(
    items: Iterator[Announcement[_Item, _Note]], channel: WorkerChannel | None
) -> Generator[tuple[_Item | None, Sequence[_Note | None]]]:
    """Yields this worker's item and all workers' notes for each step, None for those without, until all have ended."""
    with contextlib.ExitStack() as stack:
        if hasattr(items, "close"):
            stack.callback(items.close)
        if channel is None:
            for item, note, _ in items:
                yield item, [note]
        else:
            yield from _chunks(_Reader(items), channel)


def _chunks(
    reader: _Reader[_Item, _Note], channel: WorkerChannel
) -> Generator[tuple[_Item | None, Sequence[_Note | None]]]:
    steps = 1
    chunk = reader.read(_StepChunk(steps))
    channel.publish(reader.message(chunk))
    while True:
        messages: list[_Message[_Note]] = [json.loads(message) for message in channel.collect()]
        filled = max(len(message["notes"]) for message in messages)
        following: _StepChunk[_Item, _Note] = _StepChunk(min(2 * steps, *(message["limit"] for message in messages)))
        # One step less to read it in: then its message is on its way when the others need it.
        at_a_time = -(-following.steps // max(1, steps - 1))
        over = all(message["end"] for message in messages)
        for step in range(filled):
            if step >= min((len(m["notes"]) for m in messages if m["error"] is not None), default=filled):
                break
            notes = [message["notes"][step] if step < len(message["notes"]) else None for message in messages]
            yield chunk.take(step), notes
            if not over and not following.published:
                reader.read(following, at_a_time)
                _publish_if_complete(reader, following, channel)
        _check_errors(reader, messages, channel)
        if over:
            return
        if not following.published:
            reader.read(following)
            _publish_if_complete(reader, following, channel)
        chunk, steps = following, following.steps


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

    def __init__(self, steps: int):
        self.steps = steps
        self.items: list[_Item | None] = []
        self.notes: list[_Note] = []
        self.published = False

    def take(self, step: int) -> _Item | None:
        """Returns the item of a step and drops the reference to it."""
        if step >= len(self.items):
            return None
        item, self.items[step] = self.items[step], None
        return item


class _Reader(Generic[_Item, _Note]):
    """Reads this worker's items into chunks, until the end or an error."""

    def __init__(self, items: Iterator[Announcement[_Item, _Note]]):
        self._items = items
        self._largest = 1
        self.ended = False
        self.error: BaseException | None = None

    def read(self, chunk: _StepChunk[_Item, _Note], most: int = _MOST_STEPS) -> _StepChunk[_Item, _Note]:
        """Reads up to `most` more items into a chunk, as many as it has room for."""
        for _ in range(min(most, chunk.steps - len(chunk.items))):
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
        return chunk

    def message(self, chunk: _StepChunk[_Item, _Note]) -> bytes:
        """Returns the message to the other workers on a chunk."""
        error = None if self.error is None else f"{type(self.error).__name__}: {self.error}"[:2000]
        limit = max(1, min(_MOST_STEPS, _MOST_BYTES // self._largest))
        told: _Message[_Note] = {"notes": chunk.notes, "end": self.ended, "error": error, "limit": limit}
        return json.dumps(told, separators=(",", ":")).encode()
