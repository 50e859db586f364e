"""Connections to a port of ours: they are strangers until they have proved that they know the job's token.

Every listener keeps those who have not in `Strangers`: they have two seconds, and if they are too many the oldest goes.
One that has proved it is never dropped.
"""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

#: How long a connection may stay without a proof.
SECONDS_TO_PROVE = 2.0
_T = TypeVar("_T")


class Strangers(Generic[_T]):
    """Connections without a proof, the oldest first. Any thread may call it."""

    def __init__(self, seconds: float = SECONDS_TO_PROVE, most: int = 256):
        self.seconds, self._most = seconds, most  # that each may stay; how many at once, before the oldest goes
        self._lock = threading.Lock()
        self._since: dict[_T, float] = {}

    def all(self) -> list[_T]:
        """Returns all of them, the oldest first."""
        with self._lock:
            return [*self._since]

    def add(self, stranger: _T) -> None:
        """Notes a new connection."""
        with self._lock:
            self._since[stranger] = time.monotonic()

    def remove(self, stranger: _T) -> bool:
        """Forgets a connection that has proved itself or has ended; returns whether it was still a stranger."""
        with self._lock:
            return self._since.pop(stranger, None) is not None

    def due(self) -> float:
        """Returns when the oldest one's time is up (`time.monotonic`)."""
        with self._lock:
            return next(iter(self._since.values()), float("inf")) + self.seconds

    def overdue(self) -> list[_T]:
        """Forgets and returns those whose time is up, and the oldest of too many: the caller closes them."""
        late = time.monotonic() - self.seconds
        with self._lock:
            too_many = len(self._since) - self._most
            found = [each for i, (each, since) in enumerate(self._since.items()) if i < too_many or since <= late]
            return self._without(found)

    def oldest(self) -> list[_T]:
        """Forgets and returns the oldest one, if there is any."""
        with self._lock:
            return self._without([*self._since][:1])

    def _without(self, found: list[_T]) -> list[_T]:
        for each in found:
            del self._since[each]
        return found
