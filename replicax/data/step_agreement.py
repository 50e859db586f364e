"""All workers learn what each of them has for the coming steps, ahead of the computation.

A worker reads several steps ahead, tells in one message what it has for them, and reads on while the others' messages
arrive. So there is one exchange for several steps, in the thread that prefetches, and usually nobody waits. A message
goes on through the passes of a loop: it tells where they end, too, so short ones cost no more exchanges than long ones.
"""

from __future__ import annotations

import collections
import contextlib
import json
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Generic, NamedTuple, TypedDict, TypeVar

from replicax.cluster.exchange import ClosedError
from replicax.data.position import Position
from replicax.data.worker_channel import WorkerChannel
from replicax.errors import BatchError

_Item = TypeVar("_Item")
_Note = TypeVar("_Note")
# A message for more steps costs less per step, but what is read ahead takes memory (of the caches, too), and is lost if
# the loop ends early.
_MOST_BYTES = 16 * 2**20
_MOST_S = 0.1  # of reading
_FEW_STEPS = 16  # which may take longer, after half as many
_GROWTH = 16  # of a message, from the first, of one step; how long steps take is only known when some have been read


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
    """A worker's message on its next steps: notes, whether they are the last, an error, and how far to read."""

    notes: list[_Note | None]  # None where a pass ends
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
        return _merged(_Reader(passes, channel), channel, shortest)
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


def _merged(reader: _Reader[_Item, _Note], channel: WorkerChannel, shortest: bool) -> Generator[Agreed[_Item, _Note]]:
    """Makes steps of what the workers tell: the same on all of them, for each has the same notes in the same order."""
    workers, own = channel.workers.count, channel.workers.index
    notes: list[collections.deque[_Note | None]] = [collections.deque() for _ in range(workers)]
    messages: list[_Message[_Note]] = []
    most_missing = 0 if shortest else workers - 1  # workers without data, in a step
    has_steps, over = reader.has_steps, False  # of this pass: whether it has had any, and whether it has had all
    begins: Position | None = None
    steps = at_a_time = 1
    with contextlib.closing(reader):
        while True:
            if not all(notes):
                if any(each["error"] is not None and not left for each, left in zip(messages, notes, strict=False)):
                    raise _error(reader, messages, channel)
                reader.read()
                messages = [json.loads(message) for message in channel.collect()]
                for queue, message in zip(notes, messages, strict=True):
                    queue.extend(message["notes"])
                if not all(message["end"] for message in messages):
                    steps = min(_GROWTH * steps, *(message["limit"] for message in messages))
                    reader.begin(steps)
                # One step less to read it in: then its message is on its way when the others need it.
                at_a_time = -(-steps // max(1, min(map(len, notes)) - 1))
                continue
            heads = [queue[0] for queue in notes]
            missing = heads.count(None)
            if missing == workers:
                for queue in notes:
                    queue.popleft()
                begins = reader.turn()
                if not has_steps or begins is None:
                    return
                has_steps = over = False
                continue
            for queue, head in zip(notes, heads, strict=True):
                if head is not None:
                    queue.popleft()
            yield Agreed(None if heads[own] is None else reader.take(), heads, begins)
            begins = None
            over = over or missing > most_missing
            if over:
                reader.end_pass()
            else:
                has_steps = True
            reader.read(at_a_time)


def _error(reader: _Reader[_Item, _Note], messages: Sequence[_Message[_Note]], channel: WorkerChannel) -> BaseException:
    """Returns what is raised after the steps before an error."""
    if reader.error is not None:
        return reader.error  # as it is
    names = channel.workers.names
    failed = "; ".join(f"{names[w]}: {m['error']}" for w, m in enumerate(messages) if m["error"] is not None)
    return BatchError(f"The data of another worker failed, so that no worker can go on. {failed}")


class _Reader(Generic[_Item, _Note]):
    """Reads this worker's items, for one message after the other, until the end of its passes or an error."""

    def __init__(self, passes: Iterator[OpenedPass[Announcement[_Item, _Note]]], channel: WorkerChannel):
        self._passes, self._channel = passes, channel
        position, self._items = next(passes)
        self.has_steps = position.rows > 0  # in this pass, for any worker
        self._is_empty = True  # the pass that is read, so far
        self._read: collections.deque[_Item] = collections.deque()  # what no step has taken yet
        self._begins: collections.deque[Position | None] = collections.deque()  # of the passes after those that ended
        self._largest, self._limit = 1, _FEW_STEPS
        self._ended = False
        self.error: BaseException | None = None
        self._notes: list[_Note | None] = []
        self.begin(1)

    def begin(self, steps: int) -> None:
        """Begins another message, so that up to `steps` steps wait besides those of the message before."""
        waiting = len(self._read) + len(self._begins) - len(self._notes)
        self._notes, self._seconds, self._is_sent = [], 0.0, False
        self._room = 0 if self._ended else max(0, steps - waiting)

    def read(self, most: int | None = None) -> None:
        """Reads up to `most` more items for the message, as many as it has room for; sends it when it is full."""
        if self._is_sent:
            return
        began = time.perf_counter()
        left = 0 if most is None else max(0, self._room - most)
        while self._room > left:
            self._read_one()
        self._seconds += time.perf_counter() - began
        if not self._room:
            self._channel.publish(self._message())
            self._is_sent = True

    def _read_one(self) -> None:
        following = None
        try:
            if (found := next(self._items, None)) is None:
                following = next(self._passes, None)
        except ClosedError:
            raise
        except Exception as error:  # The others must be told: they would wait for this worker.
            self._ended, self._room, self.error = True, 0, error
            return
        self._room -= 1
        if found is not None:
            self._read.append(found.item)
            self._notes.append(found.note)
            self._largest, self._is_empty = max(self._largest, found.size), False
            return
        self._notes.append(None)
        self._begins.append(None if following is None else following.position)
        if following is None:
            self._ended = True
        else:
            self._items = following.items
        if self._ended or self._is_empty:  # If it is so for all, there is no other pass.
            self._room = 0
        self._is_empty = True

    def _message(self) -> bytes:
        error = None if self.error is None else f"{type(self.error).__name__}: {self.error}"[:2000]
        if self._notes:
            steps = len(self._notes)
            quickly = int(_MOST_S * steps / max(self._seconds, 1e-9))
            self._limit = max(1, min(max(min(2 * steps, _FEW_STEPS), quickly), _MOST_BYTES // self._largest))
        told: _Message[_Note] = {"notes": self._notes, "end": self._ended, "error": error, "limit": self._limit}
        return json.dumps(told, separators=(",", ":")).encode()

    def take(self) -> _Item:
        """Returns the item of a step, and drops the reference to it."""
        return self._read.popleft()

    def end_pass(self) -> None:
        """Reads no more of a pass that another worker has ended."""
        if not self._begins:
            self._items.close()

    def turn(self) -> Position | None:
        """Goes on to the pass after one that has ended; returns where it begins, or None if there is none."""
        return self._begins.popleft()

    def close(self) -> None:
        """Ends the pass."""
        self._items.close()
