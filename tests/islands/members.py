"""Islands in threads that may be lost and come again: a meeting with a scripted past."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jax
import numpy as np

from replicax.group.membership.meeting import MemberLostError, Quorum

_TIMEOUT_S = 60.0


class Members:
    """Islands of one process, some of which are up.

    Args:
        size: How many there are if all are up.
        up: The indices of those that are up at the start.
    """

    def __init__(self, size: int, up: set[int]):
        self.size, self.up = size, set(up)
        self.lose: Callable[[int], bool] = lambda sums: False  # whether sum number `sums` fails
        self._changed = threading.Condition()
        self._brought: dict[tuple[str, int], dict[int, object]] = {}
        self._rolls: dict[int, list[int]] = {}
        self.sums = 0

    def join(self, index: int) -> Member:
        """Brings an island up; it meets the others at the next roll that is not complete yet."""
        with self._changed:
            self.up.add(index)
            self._changed.notify_all()
        return Member(self, index)

    def leave(self, index: int) -> None:
        """Takes an island down."""
        with self._changed:
            self.up.discard(index)
            self._changed.notify_all()

    def rolled(self, index: int, note: bytes) -> Quorum:
        """Waits for all that are up."""
        with self._changed:
            number = max(self._rolls, default=0) + 1
            brought = self._brought.setdefault(("roll", number), {})
            brought[index] = note
            self._changed.notify_all()

            def complete() -> bool:
                if number not in self._rolls and self.up <= brought.keys():
                    self._rolls[number] = sorted(self.up)
                return number in self._rolls

            assert self._changed.wait_for(complete, _TIMEOUT_S), f"island {index} waits at roll {number}"
            present = self._rolls[number]
            return Quorum(number, tuple(present), tuple(brought[i] for i in present))

    def summed(self, index: int, quorum: Quorum, part: int, values: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the sums over those on a roll."""
        with self._changed:
            brought = self._brought.setdefault((f"sum {part}", quorum.number), {})
            brought[index] = values
            if len(brought) == len(quorum.present):
                self.sums += 1
                brought[-1] = self.lose(self.sums)
            self._changed.notify_all()
            over = lambda: -1 in brought or not self.up.issuperset(quorum.present)  # noqa: E731
            assert self._changed.wait_for(over, _TIMEOUT_S), f"island {index} waits in a sum"
            if brought.setdefault(-1, True):
                raise MemberLostError
            return [np.add.reduce(column) for column in zip(*(brought[i] for i in quorum.present), strict=True)]


class Member:
    """The meeting as one island sees it."""

    def __init__(self, members: Members, index: int):
        self._members, self.index, self.size = members, index, members.size
        self.names = tuple(f"island {i}" for i in range(members.size))
        self._part = 0

    def gather(self, what: str, note: bytes) -> Quorum:
        self._part = 0
        return self._members.rolled(self.index, note)

    def total(self, quorum: Quorum, values: list[jax.Array]) -> list[jax.Array]:
        self._part += 1
        sums = self._members.summed(self.index, quorum, self._part, [np.asarray(value) for value in values])
        return [jax.device_put(each, value.sharding) for each, value in zip(sums, values, strict=True)]
