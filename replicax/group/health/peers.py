"""The other workers: how to ask each of them, and what it has answered so far."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence

from replicax.cluster.patience import Patience
from replicax.group.health.client import Client, in_parallel
from replicax.group.health.diagnosis import WorkerObservation
from replicax.group.health.status import Status
from replicax.runtime.activity import LEAVE

#: A worker is asked once a second and answers within one, on a slow network within ten. Before its first answer it may
#: start its server. At the end process 0 waits a little for the others, and for those who read its report.
WATCHING = Patience(start=20.0, silence=1.0, end=2.0, again=1.0, stall=10.0)
_OF_AN_ANSWER = 0.2  # part of the time of an answer, within which a process on a free machine shows that it is there


class History:
    """The answers of one worker. Any thread may note them; the caller passes the time."""

    def __init__(self, name: str, address: str, time: float):
        self.name, self.address = name, address
        self.status: Status | None = None  # its last answer; None if it has never answered
        self.took = 0.0  # seconds until it answered last
        self._heard, self.missed, self._refusals = time, False, 0  # `missed`: it did not answer the last question
        self._lock = threading.Lock()

    def answered(self, status: Status, time: float, took: float = 0.0) -> None:
        """Notes an answer. An answer from before the worker's goodbye may arrive after it."""
        with self._lock:
            if self.status is None or not self.status.ended or status.ended:
                self.status = status
            self._heard, self.missed, self._refusals, self.took = time, False, 0, took

    def refused(self) -> None:
        """Notes that nothing listens at its port."""
        with self._lock:
            self.missed, self._refusals = True, self._refusals + 1

    def unheard(self) -> None:
        """Notes that it did not answer in time."""
        with self._lock:
            self.missed, self._refusals = True, 0

    def is_known_since(self, time: float) -> bool:
        """Returns whether it has answered since then, or has said how it ended."""
        with self._lock:
            ended = self.status is not None and bool(self.status.ended)
            return ended or (not self.missed and self._heard >= time)

    def forgive(self, time: float) -> None:
        """Forgets a silence, because this process itself did not listen."""
        with self._lock:
            self._heard, self._refusals = time, 0

    def ended(self, how: str, order: tuple[int, int]) -> None:
        """Notes its goodbye, and its last call."""
        with self._lock:
            self.status = dataclasses.replace(
                self.status or Status(LEAVE), phase=LEAVE, seconds=0.0, ended=how, waiting=None, order=order
            )

    def seen(self, time: float) -> WorkerObservation:
        """Returns what is known of the worker now. It is silent only if it did not answer the last question."""
        with self._lock:
            silent = time - self._heard if self.missed else 0.0
            return WorkerObservation(self.name, self.address, self.status, silent, self._refusals)


@dataclasses.dataclass
class Peer:
    """Another worker: the client that asks it, and its answers."""

    index: int
    client: Client
    history: History
    patience: Patience = WATCHING

    @property
    def reachable(self) -> bool:
        """Whether it has ever answered."""
        return self.history.status is not None

    @property
    def seconds_to_answer(self) -> float:
        """How long to wait for an answer that somebody needs now: longer on a slow network."""
        return min(max(self.patience.silence, 3 * self.history.took), self.patience.stall)

    def is_there(self) -> bool:
        """Returns whether it answers now."""
        try:
            answer = self.patience.silence
            self.client.status(_OF_AN_ANSWER * answer + min(2 * self.history.took, answer))
        except OSError:
            return False
        except ValueError:
            pass
        return True


def tell(peers: Sequence[Peer], path: str, document: Mapping[str, object]) -> None:
    """Sends all peers a document at the same time; returns when each has received it or does not answer."""
    calls = [lambda peer=peer: peer.client.post(path, document, peer.seconds_to_answer) for peer in peers]
    in_parallel(calls, max((peer.seconds_to_answer for peer in peers), default=0.0))
