"""Which steps wait, which are under way, and who gets the next one: a value, and pure functions of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from replicax.parameter_server.scheduling.closures import Closure


class WaitingClosure(NamedTuple):
    """A closure in the queue."""

    closure: Closure
    lost_workers: int = 0  # that had it when they were lost


class Attempt(NamedTuple):
    """One try of a worker at a closure."""

    id: int  # Answers to an earlier attempt of the same closure are ignored.
    worker: int
    closure: Closure


class RunningClosure(NamedTuple):
    """A closure that a worker has."""

    attempt: Attempt
    waiting: WaitingClosure  # its entry in the queue, before
    overtaken: int = 0  # how many other updates may be applied after its variables were read, and before its own
    is_retracing: bool = False  # It is being compiled for another batch.


_PerWorker = tuple[tuple[RunningClosure, ...], ...]


class Ledger(NamedTuple):
    """The closures that are to be run, and the workers that run them.

    With `max_staleness` no closure is begun that could make the gradients of another one older than that: while a
    closure is under way, at most `max_staleness` others may have been or be under way. 0 means one at a time: exact.

    Example:
        >>> from replicax.parameter_server.scheduling.closures import Closure
        >>> ledger = Ledger.of(workers=2).worker_ready(1).add("a step")
        >>> ledger, attempts = ledger.assign()
        >>> attempts
        (Attempt(id=0, worker=1, closure='a step'),)
        >>> ledger.under_way, ledger.finish(attempts[0]).under_way
        (1, 0)
    """

    running: _PerWorker  # for each worker its closures, the oldest first
    depth: int  # how many closures a worker may have at once
    max_staleness: int | None  # None for any number of updates
    queue: Fifo[WaitingClosure]
    ready: frozenset[int] = frozenset()  # the workers that can take closures
    next_worker: int = 0  # whose turn it is
    next_attempt: int = 0

    @classmethod
    def of(cls, workers: int, depth: int = 2, max_staleness: int | None = None) -> Ledger:
        """Returns a ledger of so many workers, none of which is ready, without closures."""
        return cls(((),) * workers, depth if max_staleness is None else 1, max_staleness, Fifo())

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.running)

    @property
    def queued(self) -> int:
        """Number of closures that nobody has begun."""
        return len(self.queue)

    @property
    def under_way(self) -> int:
        """Number of closures that workers have."""
        return sum(map(len, self.running))

    @property
    def retracing(self) -> int:
        """Number of closures under way that are being compiled for another batch."""
        return sum(each.is_retracing for worker in self.running for each in worker)

    def closures(self) -> list[Closure]:
        """Returns all closures: those in the queue, and those that workers have."""
        running = [each.attempt.closure for worker in self.running for each in worker]
        return [*(each.closure for each in self.queue), *running]

    def find(self, attempt: Attempt) -> RunningClosure | None:
        """Returns what is known of an attempt; None if it has ended."""
        return next((each for each in self.running[attempt.worker] if each.attempt.id == attempt.id), None)

    # Transitions: each returns the ledger afterwards.

    def add(self, closure: Closure) -> Ledger:
        """Puts a closure at the end of the queue."""
        return self._replace(queue=self.queue.append(WaitingClosure(closure)))

    def worker_ready(self, worker: int) -> Ledger:
        """Notes that a worker can take closures."""
        return self._replace(ready=self.ready | {worker})

    def worker_away(self, worker: int) -> Ledger:
        """Notes that a worker takes no more closures; it has those that it has, until it is lost."""
        return self._replace(ready=self.ready - {worker})

    def worker_lost(self, worker: int) -> Ledger:
        """Notes that a worker has gone; what it had goes back to the head of the queue."""
        queue = self.queue
        for each in reversed(self.running[worker]):
            queue = queue.push_front(each.waiting._replace(lost_workers=each.waiting.lost_workers + 1))
        away = self.worker_away(worker)
        return away._replace(running=_with(self.running, worker, ()), queue=queue)

    def assign(self) -> tuple[Ledger, tuple[Attempt, ...]]:
        """Hands out closures: the oldest first, to the workers that have least; returns the attempts, too."""
        ledger, attempts = self, []
        while ledger.queue and _may_begin(ledger):
            worker = _freest(ledger)
            if worker is None:
                break
            ledger, attempt = ledger._begin(worker)
            attempts.append(attempt)
        return ledger, tuple(attempts)

    def _begin(self, worker: int) -> tuple[Ledger, Attempt]:
        waiting, queue = self.queue.pop()
        attempt = Attempt(self.next_attempt, worker, waiting.closure)
        running, overtaken = self.running, 0
        if self.max_staleness is not None:
            overtaken = self.under_way
            running = tuple(tuple(e._replace(overtaken=e.overtaken + 1) for e in each) for each in running)
        running = _with(running, worker, (*running[worker], RunningClosure(attempt, waiting, overtaken)))
        begun = self._replace(running=running, queue=queue, next_worker=worker + 1, next_attempt=self.next_attempt + 1)
        return begun, attempt

    def retraces(self, attempt: Attempt) -> Ledger:
        """Notes that a closure is being compiled for another batch; its worker keeps it."""
        return _changed(self, attempt, lambda each: each._replace(is_retracing=True))

    def repeat(self, attempt: Attempt) -> tuple[Ledger, Attempt]:
        """Lets a worker try again a closure that it has; returns the new attempt, too."""
        again = attempt._replace(id=self.next_attempt)
        ledger = _changed(self, attempt, lambda each: each._replace(attempt=again, is_retracing=False))
        return ledger._replace(next_attempt=self.next_attempt + 1), again

    def finish(self, attempt: Attempt) -> Ledger:
        """Notes that a worker is through with a closure."""
        return _changed(self, attempt, lambda each: None)

    def put_back(self, attempt: Attempt) -> Ledger:
        """Notes that a worker could not run a closure, which goes back to the head of the queue."""
        it = self.find(attempt)
        assert it is not None
        return self.finish(attempt)._replace(queue=self.queue.push_front(it.waiting))

    def remove(self, closure: Closure) -> Ledger:
        """Takes a closure out of the queue."""
        left = [each for each in self.queue if each.closure is closure]
        return self._replace(queue=self.queue.without(left[0])) if left else self

    def without_queue(self) -> Ledger:
        """Returns the ledger with an empty queue."""
        return self._replace(queue=Fifo())

    def without_closures(self) -> Ledger:
        """Returns the ledger with nothing queued and nothing under way."""
        return self._replace(queue=Fifo(), running=((),) * self.workers)


def _with(running: _PerWorker, worker: int, closures: tuple[RunningClosure, ...]) -> _PerWorker:
    return (*running[:worker], closures, *running[worker + 1 :])


def _freest(ledger: Ledger) -> int | None:
    """Returns the ready worker that has least and could take more; None if there is none."""
    found, least, first = None, ledger.depth, ledger.next_worker % ledger.workers
    # In turn, so that the first worker does not get everything; an idle one ends the search, as there may be thousands.
    for worker in itertools.chain(range(first, ledger.workers), range(first)):
        has = len(ledger.running[worker])
        if has < least and worker in ledger.ready:
            found, least = worker, has
            if has == 0:
                break
    return found


def _may_begin(ledger: Ledger) -> bool:
    if ledger.max_staleness is None:
        return True
    most = ledger.max_staleness
    return all(each.overtaken < most for worker in ledger.running for each in worker)


def _changed(ledger: Ledger, attempt: Attempt, change: Callable[[RunningClosure], RunningClosure | None]) -> Ledger:
    worker = attempt.worker
    changed = [change(each) if each.attempt.id == attempt.id else each for each in ledger.running[worker]]
    left = tuple(each for each in changed if each is not None)
    return ledger._replace(running=_with(ledger.running, worker, left))


T = TypeVar("T")
_Cell = tuple[T, "_Cell[T] | None"]  # an item and those after it


@dataclasses.dataclass(frozen=True)
class Fifo(Generic[T]):
    """A queue as a value: each change returns another queue, and takes the same time however long it is.

    Items leave from the head of `front`. When that is empty, `back`, which holds the newest item first, is reversed
    once to become the next `front`.

    Example:
        >>> queue = Fifo().append("b").append("c").push_front("a")
        >>> item, rest = queue.pop()
        >>> item, list(rest), len(queue)
        ('a', ['b', 'c'], 3)
    """

    front: _Cell[T] | None = None
    back: _Cell[T] | None = None
    length: int = 0

    def append(self, item: T) -> Fifo[T]:
        """Returns the queue with another item at its end."""
        return Fifo(self.front, (item, self.back), self.length + 1)

    def push_front(self, item: T) -> Fifo[T]:
        """Returns the queue with another item at its head."""
        return Fifo((item, self.front), self.back, self.length + 1)

    def pop(self) -> tuple[T, Fifo[T]]:
        """Returns the item at the head, and the queue without it."""
        front, back = self.front, self.back
        if front is None:
            front, back = _cells(_items(back)), None
        if front is None:
            raise IndexError("pop from an empty queue")
        item, rest = front
        return item, Fifo(rest, back, self.length - 1)

    def without(self, item: T) -> Fifo[T]:
        """Returns the queue without the items equal to `item`."""
        left = [each for each in self if each != item]
        return Fifo(_cells(reversed(left)), None, len(left))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        yield from _items(self.front)
        yield from reversed(list(_items(self.back)))


def _items(cell: _Cell[T] | None) -> Iterator[T]:
    while cell is not None:
        item, cell = cell
        yield item


def _cells(items: Iterable[T]) -> _Cell[T] | None:
    """Returns cells with the last of these items first."""
    cell: _Cell[T] | None = None
    for item in items:
        cell = (item, cell)
    return cell
