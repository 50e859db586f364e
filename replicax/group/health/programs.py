"""Comparing programs: before one runs for the first time, it and its arguments must be the same in all workers."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence

from replicax.errors import ArgumentMismatchError, ProgramMismatchError
from replicax.group.health.peers import Peer
from replicax.runtime.call_order import ArgumentValue

_SECONDS_BETWEEN_QUESTIONS = 0.02, 0.25  # at first, and later: the monitor limits the wait
_MOST_COMPARED = 32  # peers; of more, some are asked


@dataclasses.dataclass(frozen=True)
class AnnouncedProgram:
    """A program that a worker is about to run for the first time."""

    name: str
    fingerprint: str  # hash of the program; empty if this worker does not run it
    arguments: tuple[ArgumentValue, ...] = ()  # of its first call: those that each worker makes for itself

    def differs(self, other: AnnouncedProgram) -> bool:
        """Returns whether the two cannot be the same program."""
        known = self.fingerprint and other.fingerprint
        return self.name != other.name or bool(known and self.fingerprint != other.fingerprint)

    def different_argument(self, other: AnnouncedProgram) -> tuple[ArgumentValue, ArgumentValue] | None:
        """Returns the first argument that is another one there; what is fixed in programs counts where these differ."""
        if self.name != other.name:
            return None
        theirs, programs_differ = {each.name: each for each in other.arguments}, self.differs(other)
        for mine in self.arguments:
            found = theirs.get(mine.name, mine)
            if found != mine and (programs_differ or not mine.is_fixed):
                return mine, found
        return None


def announced_program_from(document: object) -> AnnouncedProgram:
    """Returns a program from the JSON of another process, or raises a `ValueError`."""
    if not isinstance(document, dict) or not {"name", "fingerprint"} <= document.keys():
        raise ValueError(f"not a program: {document!r:.100}")
    arguments = document.get("arguments", [])
    if not isinstance(arguments, list) or not all(
        isinstance(each, list) and [type(item) for item in each] == [str, int, str, bool] for each in arguments
    ):
        raise ValueError(f"not the arguments of a program: {arguments!r:.100}")
    return AnnouncedProgram(
        str(document["name"]), str(document["fingerprint"]), tuple(ArgumentValue(*each) for each in arguments)
    )


def neighbours(me: int, peers: Sequence[Peer]) -> list[Peer]:
    """Returns the peers to compare with: all, or of many those at distances of 1, 2, 4, ... in the ring of workers."""
    if len(peers) <= _MOST_COMPARED:
        return list(peers)
    # n workers that each compare with all others are n * n questions. A worker that differs from the rest has a
    # neighbour that does not, since the ring connects all; the two raise the error, and the monitors end the job.
    count = len(peers) + 1
    steps = [2**power for power in range((count - 1).bit_length())]
    wanted = {(me + step) % count for step in steps} | {(me - step) % count for step in steps}
    return [peer for peer in peers if peer.index in wanted]


class ProgramComparison:
    """The programs of this process in the order of their first runs, and the comparison with the peers'."""

    def __init__(self, index: int, name: str) -> None:
        self._index, self._name = index, name
        self._lock = threading.Lock()
        self._announced: list[AnnouncedProgram] = []
        self._names = set[str]()

    def is_new(self, name: str) -> bool:
        """Returns whether a name is asked about for the first time."""
        before = len(self._names)
        self._names.add(name)
        return len(self._names) > before

    def announce(self, program: AnnouncedProgram) -> int:
        """Makes a program known to peers that ask; returns its index."""
        with self._lock:
            self._announced.append(program)
            return len(self._announced) - 1

    def get(self, index: int) -> Mapping[str, object] | None:
        """Returns an announced program as JSON; None if there is none at `index`."""
        with self._lock:
            return dataclasses.asdict(self._announced[index]) if index < len(self._announced) else None

    def compare(self, index: int, peers: Sequence[Peer], wait: bool) -> None:
        """Compares a program with those of the `neighbours`; may `wait` until they have announced theirs."""
        # The monitor ends a wait that takes too long. A peer that cannot be watched is not waited for.
        pending = [peer for peer in neighbours(self._index, peers) if peer.reachable]
        pause, longest = _SECONDS_BETWEEN_QUESTIONS
        while True:
            pending = [peer for peer in pending if not self._same(index, peer)]
            if not pending or not wait:
                return
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _same(self, index: int, peer: Peer) -> bool:
        """Returns whether a peer has announced the same program; False if it has announced none yet."""
        try:
            answer = peer.client.program(index, peer.seconds_to_answer)
            theirs = None if answer is None else announced_program_from(answer)
        except (OSError, ValueError):
            return False
        mine = self._announced[index]
        if theirs is not None and (pair := mine.different_argument(theirs)) is not None:
            argument, other = pair
            raise ArgumentMismatchError(
                mine.name, argument.name, self._name, argument.shown, peer.history.name, other.shown, index
            )
        if theirs is not None and mine.differs(theirs):
            raise ProgramMismatchError(
                self._name, mine.name, mine.fingerprint, peer.history.name, theirs.name, theirs.fingerprint, index
            )
        return theirs is not None
