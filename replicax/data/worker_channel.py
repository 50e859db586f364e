"""How workers tell each other about their data: through host memory, beside the devices and their collectives.

The prefetch threads of the workers talk here. A device collective from such a thread would come between those of the
training program, in an order that differs from worker to worker.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

import replicax.runtime.activity as activity
from replicax.cluster.exchange import AbsentError, ClosedError, Exchange
from replicax.data.receivers import InputWorkers
from replicax.errors import BatchError, ContextError


class _UnreadRounds:
    """Rounds of ended passes whose messages other workers may not have read yet.

    All workers run the same program. So a worker that takes part in a later pass has left the earlier ones behind: when
    the first round of a pass is through, the messages of passes that ended before it began can be removed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds: list[tuple[int, Exchange, list[str]]] = []

    def leave(self, next_pass: int, exchange: Exchange, rounds: list[str]) -> None:
        with self._lock:
            self._rounds.append((next_pass, exchange, rounds))

    def take(self, begun: int) -> list[tuple[Exchange, list[str]]]:
        """Returns the rounds whose messages are no longer read once all workers have begun pass `begun`."""
        with self._lock:
            old = [(exchange, rounds) for next_pass, exchange, rounds in self._rounds if next_pass <= begun]
            self._rounds = [each for each in self._rounds if each[0] > begun]
        return old


class PassNumbers:
    """Numbers the passes of a process. Every worker opens the same ones in the same order."""

    def __init__(self) -> None:
        self.next = 0
        self.unread = _UnreadRounds()

    def take(self) -> int:
        """Returns the number of a new pass."""
        self.next += 1
        return self.next - 1


_numbers = PassNumbers()


class WorkerChannel:
    """Exchanges messages between the workers during one pass; made in the main thread, in the same order on all."""

    def __init__(self, workers: InputWorkers, timeout_s: float, numbers: PassNumbers = _numbers):
        self.workers = workers
        self._timeout_s, self._numbers = timeout_s, numbers
        self._pass = numbers.take()
        self._published = itertools.count()
        self._collected = itertools.count()
        self._unread: dict[str, bytes] = {}  # this worker's messages by round, until all others have read them
        self.closed = threading.Event()
        self._exchange = Exchange(
            f"replicax/data/{self._pass}",
            workers.index,
            range(workers.count),
            store=workers.store,
            timeout_s=timeout_s,
            closed=self.closed,
            waiting=lambda stage, processes: activity.exchange("data"),
        )

    def exchange(self, message: bytes) -> list[bytes]:
        """Returns the messages of all workers, in their order, after all have called it."""
        self.publish(message)
        return self.collect()

    def publish(self, message: bytes) -> None:
        """Sets what a later `collect` of each worker returns for this one; does not wait."""
        if self.closed.is_set():
            raise ClosedError
        name = str(next(self._published))
        self._unread[name] = message
        self._exchange.tell(name, message)

    def collect(self) -> list[bytes]:
        """Waits for all workers' messages of the next round."""
        name = str(next(self._collected))
        with self._explained():
            messages = self._exchange.collect_all(name, self._unread[name])
        self._remove_read(name)
        return messages

    def send(self, worker: int, name: str, message: bytes) -> None:
        """Leaves a message for one other worker."""
        self._exchange.tell(f"{name}/to {worker}", message)

    def receive(self, worker: int, name: str) -> bytes:
        """Waits for the message that a worker has sent to this one, and removes it."""
        stage = f"{name}/to {self.workers.index}"
        with self._explained():
            (message,) = self._exchange.collect(stage, [worker])
        self._exchange.forget(stage, worker)
        return message

    def close(self) -> None:
        """Ends the pass: a thread that waits is woken; messages that others may still read are left to a later pass."""
        if self.closed.is_set():
            return
        self.closed.set()
        rounds, self._unread = [*self._unread], {}
        self._numbers.unread.leave(self._numbers.next, self._exchange, rounds)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        names = self.workers.names
        try:
            yield
        except AbsentError as error:
            raise BatchError(
                f"{names[self.workers.index]} waited {self._timeout_s:g} s for "
                f"{', '.join(names[w] for w in error.missing)} to tell of its data. It has died, does not iterate over "
                "the same datasets, or reads very slowly: look at its log, and give rx.InputOptions a longer "
                "`worker_timeout` if it is only slow."
            ) from None
        except ContextError as error:
            raise BatchError(
                f"The coordination service, which {names[0]} runs, did not answer while {names[self.workers.index]} "
                f"waited for the others' data: {error.__cause__}"
            ) from error

    def _remove_read(self, collected: str) -> None:
        """Removes the messages that all have read: a worker that has come to a round has read those before it."""
        for name in itertools.takewhile(lambda name: name != collected, [*self._unread]):
            del self._unread[name]
            self._exchange.forget_read(name)
        if collected == "0":
            for exchange, rounds in self._numbers.unread.take(self._pass):
                for name in rounds:
                    exchange.forget_read(name)
