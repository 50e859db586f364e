"""How workers tell each other about their data: through host memory, beside the devices and their collectives.

The prefetch threads of the workers talk here. A device collective from such a thread would come between those of the
training program, in an order that differs from worker to worker.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Sequence

import jax

import replicax.health as health
from replicax.cluster.key_value_store import ServiceStore, Store
from replicax.errors import BatchError

_LOOK_UP_S, _LONGEST_LOOK_UP_S = 0.5, 4.0  # A thread that waits looks up so often to see whether it is still wanted.
_LONGEST_VALUE = 4 * 2**20


@dataclasses.dataclass(frozen=True)
class Workers:
    """The processes that train together.

    Attributes:
        index: Number of this one.
        names: What each is called in messages.
        replicas: Number of replicas of each; their replicas follow one another.
        store: Where they can leave messages for each other.
    """

    index: int
    names: tuple[str, ...]
    replicas: tuple[int, ...]
    store: Store = dataclasses.field(default_factory=ServiceStore)

    @property
    def count(self) -> int:
        """Number of workers."""
        return len(self.names)

    def first_replica(self, worker: int) -> int:
        """Returns the number of a worker's first replica."""
        return sum(self.replicas[:worker])


class Closed(Exception):
    """The pass has been closed while its thread waited for others: the thread should end."""


class _Leftovers:
    """Keys that other workers may not have read yet when a pass ended here.

    Who takes part in a later pass has left this one behind, as all workers run the same program: when the first round
    of a pass is through, the keys of those that ended before it began are of no use any more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: list[tuple[int, list[str]]] = []

    def leave(self, next_pass: int, keys: list[str]) -> None:
        with self._lock:
            self._keys.append((next_pass, keys))

    def take(self, begun: int) -> list[str]:
        """Returns the keys that are of no use once all workers have begun pass `begun`."""
        with self._lock:
            old = [keys for next_pass, keys in self._keys if next_pass <= begun]
            self._keys = [(next_pass, keys) for next_pass, keys in self._keys if next_pass > begun]
        return list(itertools.chain(*old))


class PassNumbers:
    """Numbers the passes of a process. Every worker opens the same ones in the same order."""

    def __init__(self) -> None:
        self.next = 0
        self.leftovers = _Leftovers()

    def take(self) -> int:
        """Returns the number of a new pass."""
        self.next += 1
        return self.next - 1


_numbers = PassNumbers()


class HostChannel:
    """Exchanges messages between the workers during one pass over a dataset.

    Make it in the main thread, where all workers do the same things in the same order.

    Args:
        workers: Who takes part.
        timeout_s: How long to wait for a message.
        numbers: Where to get the number of the pass.
    """

    def __init__(self, workers: Workers, timeout_s: float, numbers: PassNumbers = _numbers):
        self.workers = workers
        self._timeout_s, self._numbers = timeout_s, numbers
        self._number = numbers.take()
        self._prefix = f"replicax/data/{self._number}"
        self._published = self._collected = 0
        self._mine: list[str] = []
        self._own = b""
        self.closed = threading.Event()

    def exchange(self, message: bytes) -> list[bytes]:
        """Returns the messages of all workers, in their order, after all have called it."""
        self.publish(message)
        return self.collect()

    def publish(self, message: bytes) -> None:
        """Says what the next `collect` of each worker is to return for this one; does not wait."""
        if self.closed.is_set():
            raise Closed
        key = f"{self._prefix}/{self._published}/{self.workers.index}"
        self._published += 1
        self._mine.append(key)
        self._own = message
        self.workers.store.put(key, message)

    def collect(self) -> list[bytes]:
        """Waits for all workers' messages of the next round.

        Raises:
            BatchError: Not all came in time, or the coordination service has gone.
            Closed: The pass was closed.
        """
        own, round_number = self._own, self._collected
        deadline = time.monotonic() + self._timeout_s
        others = [w for w in range(self.workers.count) if w != self.workers.index]
        came: dict[int, bytes] = {self.workers.index: own}
        for worker in others:
            message = self._wait(f"{self._prefix}/{round_number}/{worker}", deadline)
            if message is None:
                # The time is up: those that come after this one are only looked up, to tell who else is missing.
                continue
            came[worker] = message
        if len(came) < self.workers.count:
            raise self._missing([w for w in others if w not in came])
        self._collected += 1
        self._tidy(round_number)
        return [came[w] for w in range(self.workers.count)]

    def send(self, worker: int, name: str, message: bytes) -> None:
        """Leaves a message for one other worker."""
        pieces = range(0, max(len(message), 1), _LONGEST_VALUE)
        key = f"{self._prefix}/{name}/{self.workers.index}-{worker}"
        for number, start in enumerate(pieces):
            head = b"" if number else len(pieces).to_bytes(4, "big")
            self.workers.store.put(f"{key}/{number}", head + message[start : start + _LONGEST_VALUE])

    def receive(self, worker: int, name: str) -> bytes:
        """Waits for the message that a worker has sent to this one, and takes it away.

        Raises:
            BatchError: It did not come in time.
            Closed: The pass was closed.
        """
        key = f"{self._prefix}/{name}/{worker}-{self.workers.index}"
        deadline = time.monotonic() + self._timeout_s
        pieces: list[bytes] = []
        count = 1
        while len(pieces) < count:
            piece = self._wait(f"{key}/{len(pieces)}", deadline)
            if piece is None:
                raise self._missing([worker])
            if not pieces:
                count, piece = int.from_bytes(piece[:4], "big"), piece[4:]
            pieces.append(piece)
        for number in range(count):
            self.workers.store.delete(f"{key}/{number}")
        return b"".join(pieces)

    def close(self) -> None:
        """Ends the pass: a thread that waits is woken; keys that others may still read are left to a later pass."""
        if self.closed.is_set():
            return
        self.closed.set()
        keys, self._mine = self._mine, []
        self._numbers.leftovers.leave(self._numbers.next, keys)

    def _wait(self, key: str, deadline: float) -> bytes | None:
        with health.exchange("data"):
            return self._look_up(key, deadline)

    def _look_up(self, key: str, deadline: float) -> bytes | None:
        look_up = _LOOK_UP_S
        while True:
            remaining = deadline - time.monotonic()
            try:
                value = self.workers.store.get(key, max(0.001, min(look_up, remaining)))
            except jax.errors.JaxRuntimeError as error:
                raise BatchError(
                    f"The coordination service, which {self.workers.names[0]} keeps, did not answer while "
                    f"{self.workers.names[self.workers.index]} waited for the others' data: {error}"
                ) from error
            if value is not None:
                return value
            if self.closed.is_set():
                raise Closed
            if remaining <= 0:
                return None
            look_up = min(2 * look_up, _LONGEST_LOOK_UP_S)  # The store may be further away than that.

    def _tidy(self, round_number: int) -> None:
        # All have come to this round, so all have read those before.
        done = self._mine[: -1 - (self._published - 1 - round_number)]
        del self._mine[: len(done)]
        if round_number == 0:
            done = done + self._numbers.leftovers.take(self._number)
        for key in done:
            self.workers.store.delete(key)

    def _missing(self, missing: Sequence[int]) -> BatchError:
        names = self.workers.names
        return BatchError(
            f"{names[self.workers.index]} waited {self._timeout_s:g} s for {', '.join(names[w] for w in missing)} to "
            f"tell of its data. It has died, does not iterate over the same datasets, or reads very slowly: "
            "look at its log, and give rx.InputOptions a longer `worker_timeout` if it is only slow."
        )
