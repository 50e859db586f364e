"""Messages between all processes through host memory, at points that all of them reach in the same order.

A collective of the devices aborts the process if another one brings an array of another shape, or waits for ever if it
runs another program. So what may differ is compared here first.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import jax

from replicax.cluster.key_value_store import ServiceStore, Store, get_pieces, put_pieces
from replicax.errors import BarrierTimeoutError, ContextError

# A wait is interrupted so often, for signals and the deadline: less and less, since no answer arrives in time where it
# is under way for longer than that, on a slow network.
_LOOK_UP_S, _LONGEST_LOOK_UP_S = 1.0, 4.0
_LONGEST_WAIT_S = 24 * 60 * 60.0  # Whoever watches the processes ends a job that stands still long before.
_PREFIX = "replicax/exchange"


class Exchanges:
    """The exchanges of this process with the others; every process makes the same ones in the same order.

    Args:
        index: Number of this process.
        count: Number of processes.
        store: Where they leave messages for each other.
        timeout_s: How long to wait for the others.
    """

    def __init__(self, index: int, count: int, store: Store, timeout_s: float = _LONGEST_WAIT_S):
        self._index, self._count, self._store, self._timeout_s = index, count, store, timeout_s
        self._numbers = itertools.count()

    def all(self, message: bytes) -> list[bytes]:
        """Returns the messages of all processes, in their order, after all have called it.

        Process 0 collects them and gives all to all, so that each process waits for one message, not for all.

        Raises:
            BarrierTimeoutError: Some process did not come, in a day.
            ContextError: Process 0, which keeps the store, is gone.
        """
        number = next(self._numbers)
        key = f"{_PREFIX}/{number}"
        deadline = time.monotonic() + self._timeout_s
        try:
            if self._index > 0:
                put_pieces(self._store, f"{key}/{self._index}", message)
                return _apart(self._waited(f"{key}/all", 0, number, deadline))
            others = (self._waited(f"{key}/{i}", i, number, deadline) for i in range(1, self._count))
            messages = [message, *others]
            put_pieces(self._store, f"{key}/all", _joined(messages))
            if number > 0:  # All have come to this one, so all have read the one before.
                self._store.delete(f"{_PREFIX}/{number - 1}")
            return messages
        except jax.errors.JaxRuntimeError as error:
            raise ContextError(
                f"Process {self._index} cannot reach the coordination service, which process 0 keeps, to compare "
                f"values with the other processes: {error}"
            ) from error

    def _waited(self, key: str, process: int, number: int, deadline: float) -> bytes:
        look_up = _LOOK_UP_S
        while True:
            remaining = deadline - time.monotonic()
            message = get_pieces(self._store, key, max(0.001, min(look_up, remaining)))
            look_up = min(2 * look_up, _LONGEST_LOOK_UP_S)
            if message is not None:
                return message
            if remaining <= 0:
                name = f"exchange of values {number + 1}"
                raise BarrierTimeoutError(name, round(1000 * self._timeout_s), self._index, [process])


class _Shared:
    """The exchanges of this process; made when the first one is wanted, for JAX must be connected by then."""

    def __init__(self) -> None:
        self._exchanges: Exchanges | None = None

    def get(self) -> Exchanges:
        if self._exchanges is None:
            self._exchanges = Exchanges(jax.process_index(), jax.process_count(), ServiceStore())
        return self._exchanges


_shared = _Shared()


def exchanged(message: bytes) -> list[bytes]:
    """Returns the messages of all processes, in their order; all processes must call this together.

    Raises: As `Exchanges.all`.
    """
    return _shared.get().all(message)


def _joined(messages: Sequence[bytes]) -> bytes:
    lengths = b"".join(len(message).to_bytes(8, "big") for message in messages)
    return b"".join([len(messages).to_bytes(4, "big"), lengths, *messages])


def _apart(joined: bytes) -> list[bytes]:
    count = int.from_bytes(joined[:4], "big")
    lengths = [int.from_bytes(joined[4 + 8 * i : 12 + 8 * i], "big") for i in range(count)]
    ends = list(itertools.accumulate(lengths, initial=4 + 8 * count))
    return [joined[start:end] for start, end in itertools.pairwise(ends)]
