"""What is remembered of each peer between two looks at it."""

from __future__ import annotations

import dataclasses

from replicax.health.client import Client
from replicax.health.diagnosis import Seen
from replicax.health.phases import LEAVE
from replicax.health.status import Status


class History:
    """The answers of one worker; whoever calls it brings the time.

    Args:
        name: Its name.
        address: Its address in the cluster.
        time: Now, in seconds of any clock.
    """

    def __init__(self, name: str, address: str, time: float):
        self.name, self.address = name, address
        self.status: Status | None = None
        self._heard, self._missed, self._refusals = time, False, 0

    def answered(self, status: Status, time: float) -> None:
        """Notes an answer."""
        self.status, self._heard, self._missed, self._refusals = status, time, False, 0

    def refused(self) -> None:
        """Notes that nobody listens at its port."""
        self._missed, self._refusals = True, self._refusals + 1

    def unheard(self) -> None:
        """Notes that it did not answer in time."""
        self._missed, self._refusals = True, 0

    def forgive(self, time: float) -> None:
        """Forgets a silence: it was this process that did not listen."""
        self._heard, self._refusals = time, 0

    def ended(self, how: str) -> None:
        """Notes its goodbye."""
        self.status = dataclasses.replace(
            self.status or Status(LEAVE), phase=LEAVE, seconds=0.0, ended=how, waiting=None
        )

    def seen(self, time: float) -> Seen:
        """Returns what is known of it now; it is not silent if it answered the last question."""
        silent = time - self._heard if self._missed else 0.0
        return Seen(self.name, self.address, self.status, silent, self._refusals)


@dataclasses.dataclass
class Peer:
    """Another worker.

    Attributes:
        index: Its number.
        client: How to ask it.
        history: What it has answered.
    """

    index: int
    client: Client
    history: History

    @property
    def reachable(self) -> bool:
        """Whether it has ever answered."""
        return self.history.status is not None
