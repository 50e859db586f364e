"""The workers that come and go as a value: who was started, who goes on, who has left and why."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from replicax.contracts.group import Incarnation
from replicax.errors.exit_codes import ExitCode, describe, signal_of
from replicax.job.processes.events import TaskRun
from replicax.job.processes.output import error_line
from replicax.job.supervision.failure import Failure

SILENT = "gave no sign of life"
#: How newcomers end for whom nobody is left.
TOO_LATE = "it came when the training was done"
_FINISHED, _AT_ITS_END, _LOST = "finished", "is at its end", "nothing is heard of its machine"


class WorkerRecord(NamedTuple):
    """One run of a worker."""

    pid: int = 0
    began: float = -math.inf
    was_member: bool = False  # It has taken part.
    reason: str = ""  # why it leaves the others, or was ended
    end: str = ""  # how it has ended, or is about to

    @property
    def is_leaving(self) -> bool:
        """Whether it has said that it leaves the others."""
        return self.reason not in ("", SILENT, TOO_LATE)


@dataclasses.dataclass(frozen=True)
class Members:
    """The workers of an attempt whose workers come and go."""

    world: int = 0  # the newest that a member has told of; 0 before
    present: tuple[Incarnation, ...] = ()  # the members of that world; the first one is the chief
    workers: Mapping[Incarnation, WorkerRecord] = dataclasses.field(default_factory=dict)  # all that were ever started
    # Of workers that could not join, by their indices: how long each has paused last, and the error that it ended with.
    pauses: Mapping[int, float] = dataclasses.field(default_factory=dict)
    refusals: Mapping[int, str] = dataclasses.field(default_factory=dict)
    waiting: tuple[tuple[float, TaskRun], ...] = ()  # tasks to start, and when
    revived: int = 0  # how many tasks were started again alone
    is_done: bool = False  # the training
    error: str = ""  # that of the script in which a worker has ended last
    chief_lost: Failure | None = None

    def __getitem__(self, incarnation: Incarnation) -> WorkerRecord:
        return self.workers.get(incarnation, WorkerRecord())

    def is_chief(self, incarnation: Incarnation) -> bool:
        """Returns whether a process is the first member of the newest world."""
        return self.present[:1] == (incarnation,)

    def is_left_out(self, incarnation: Incarnation) -> bool:
        """Returns whether the others have gone on without a process, or are about to."""
        return self[incarnation].reason == SILENT or (self.world > 0 and incarnation not in self.present)

    def are_any(self, incarnations: Iterable[Incarnation]) -> bool:
        """Returns whether any of these processes has ever taken part."""
        return any(self[each].was_member for each in incarnations)

    # Transitions: each returns the members afterwards.

    def with_worker(self, incarnation: Incarnation, **known: Any) -> Members:
        """Notes something about a process; see `WorkerRecord`."""
        record = self[incarnation]._replace(**known)
        return dataclasses.replace(self, workers={**self.workers, incarnation: record})

    def silent(self, incarnation: Incarnation) -> Members:
        """Notes that a process gives no sign of life."""
        return self.with_worker(incarnation, reason=self[incarnation].reason or SILENT)

    def at_their_end(self, incarnations: Iterable[Incarnation]) -> Members:
        """Notes that scripts have come to their end, though their processes have not."""
        after = self
        for each in incarnations:
            after = after.with_worker(each, end=after[each].end or _AT_ITS_END)
        return after

    def ended(self, incarnation: Incarnation, code: int, words: str, asked: bool, is_lost: bool = False) -> Members:
        """Notes that a process has ended; `asked` says whether the launcher is ending all of them."""
        known = self[incarnation].reason
        reason = known or (_LOST if is_lost else _reason(code, words))
        if asked and not known and code != ExitCode.OK:
            reason = f"the launcher has ended it ({reason})"
        return self.with_worker(incarnation, end=reason)

    def entered(self, number: int, incarnations: Sequence[Incarnation]) -> tuple[Members, str]:
        """Notes a new world; returns why it is a new one, too, or "" if it is known already."""
        if number <= self.world:
            return self, ""
        after = dataclasses.replace(self, world=number, present=tuple(incarnations), pauses={}, chief_lost=None)
        for each in incarnations:
            after = after.with_worker(each, was_member=True)
        return after, self._why(incarnations)

    def _why(self, incarnations: Sequence[Incarnation]) -> str:
        if not self.world:
            return "the job has begun"
        before = {each.index for each, record in self.workers.items() if record.was_member}
        texts = [f"worker {each.index} {self._how(each)}" for each in self.present if each not in incarnations]
        texts += [
            f"worker {each.index} {'is back' if each.index in before else 'has joined'}"
            for each in incarnations
            if each not in self.present
        ]
        return ", ".join(texts) or "the same members go on with new connections"

    def _how(self, incarnation: Incarnation) -> str:
        record = self[incarnation]
        if record.is_leaving:
            return f"has left ({record.reason})"
        if record.end in (_AT_ITS_END, _FINISHED):
            return "has come to the end of its script"
        return f"was lost ({record.end})" if record.end not in ("", SILENT) else SILENT


def _reason(code: int, words: str) -> str:
    """Returns how a process has ended."""
    if code == ExitCode.OK:
        return _FINISHED
    if number := signal_of(code):
        return f"killed by signal {number}"
    line = error_line(words) if code in (ExitCode.FAILED, ExitCode.PEER_LOST) else ""
    return f"{describe(code)}; {line}" if line else describe(code)
