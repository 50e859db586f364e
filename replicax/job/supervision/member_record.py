"""The members of a job whose workers come and go, as its launcher learns of them; and the membership log."""

from __future__ import annotations

from collections.abc import Sequence

from replicax.contracts.group import Incarnation
from replicax.errors.exit_codes import ExitCode, describe, signal_of
from replicax.group.membership.membership_log import MembershipLog
from replicax.job.processes.events import ProcessLike
from replicax.job.processes.output import error_line

_SILENT = "gave no sign of life"
_FINISHED, _AT_ITS_END = "finished", "is at its end"
#: How newcomers end for whom nobody is left.
TOO_LATE = "it came when the training was done"


class MemberRecord:
    """Notes what happens to the workers of one attempt, and writes it to the log."""

    def __init__(self, log: MembershipLog | None = None):
        self.world = 0  # the newest that a member has told of; 0 before
        self.members: tuple[Incarnation, ...] = ()  # of that world; the first one is the chief
        self.incarnations: dict[int, int] = {}  # the newest of each worker that was ever started
        self._log = log
        self._pids: dict[Incarnation, int] = {}
        self._reasons: dict[Incarnation, str] = {}  # of those that leave or were ended
        self._ends: dict[Incarnation, str] = {}
        self._seen: set[Incarnation] = set()  # all that were ever members

    def start(self, incarnation: Incarnation, pid: int, host: str = "") -> None:
        """Notes that a process has been started; `host` says where, if it is not this machine."""
        self.incarnations[incarnation.index], self._pids[incarnation] = incarnation.number, pid
        if self._log is not None:
            self._log.start(incarnation, pid, host)

    def enter(self, number: int, incarnations: Sequence[Incarnation]) -> str:
        """Notes a new world; returns why it is a new one, or "" if it is known already."""
        if number <= self.world:
            return ""
        why = self._why(incarnations)
        self.world, self.members = number, tuple(incarnations)
        self._seen.update(incarnations)
        if self._log is not None:
            self._log.world(number, incarnations, why)
        return why

    def leave(self, incarnation: Incarnation, reason: str) -> None:
        """Notes that a member is going to leave the others."""
        self._reasons[incarnation] = reason
        if self._log is not None:
            self._log.leave(incarnation, reason)

    def is_leaving(self, incarnation: Incarnation) -> bool:
        """Returns whether a process has said that it leaves the others."""
        return self._reasons.get(incarnation, _SILENT) not in (_SILENT, TOO_LATE)

    def reason(self, incarnation: Incarnation) -> str:
        """Returns why a process leaves or was ended; "" if it is not known."""
        return self._reasons.get(incarnation, "")

    def is_at_its_end(self, incarnation: Incarnation) -> None:
        """Notes that the script of a process has come to its end, though the process has not."""
        self._ends.setdefault(incarnation, _AT_ITS_END)

    def is_silent(self, incarnation: Incarnation) -> None:
        """Notes that a process gives no sign of life."""
        self._reasons.setdefault(incarnation, _SILENT)

    def is_left_out(self, incarnation: Incarnation) -> bool:
        """Returns whether the others have gone on without a process, or are about to."""
        return self._reasons.get(incarnation) == _SILENT or (self.world > 0 and incarnation not in self.members)

    def dismiss(self, incarnation: Incarnation) -> None:
        """Notes that a process is ended since it came when the training was done."""
        self._reasons[incarnation] = TOO_LATE

    def is_dismissed(self, incarnation: Incarnation) -> bool:
        """Returns whether a process is ended since it came too late."""
        return self._reasons.get(incarnation) == TOO_LATE

    def end(self, incarnation: Incarnation, process: ProcessLike, code: int, asked: bool) -> None:
        """Notes that a process has ended; `asked` says whether the launcher is ending all of them."""
        reason = self._reasons.get(incarnation, "") or _reason(process, code)
        if asked and not self._reasons.get(incarnation) and code != ExitCode.OK:
            reason = f"the launcher has ended it ({reason})"
        self._ends[incarnation] = reason
        if self._log is not None:
            self._log.end(incarnation, self._pids.get(incarnation, 0), code, reason)

    def was_member(self, incarnation: Incarnation) -> bool:
        """Returns whether a process has ever taken part."""
        return incarnation in self._seen

    def is_chief(self, incarnation: Incarnation) -> bool:
        """Returns whether a process is the first member of the newest world."""
        return self.members[:1] == (incarnation,)

    def _why(self, incarnations: Sequence[Incarnation]) -> str:
        if not self.world:
            return "the job has begun"
        before = {incarnation.index for incarnation in self._seen}
        lost = [incarnation for incarnation in self.members if incarnation not in incarnations]
        came = [incarnation for incarnation in incarnations if incarnation not in self.members]
        texts = [f"worker {incarnation.index} {self._how(incarnation)}" for incarnation in lost]
        texts += [
            f"worker {incarnation.index} {'is back' if incarnation.index in before else 'has joined'}"
            for incarnation in came
        ]
        return ", ".join(texts) or "the same members go on with new connections"

    def _how(self, incarnation: Incarnation) -> str:
        if self.is_leaving(incarnation):
            return f"has left ({self._reasons[incarnation]})"
        ended = self._ends.get(incarnation)
        if ended in (_AT_ITS_END, _FINISHED):
            return "has come to the end of its script"
        return f"was lost ({ended})" if ended and ended != _SILENT else _SILENT


def _reason(process: ProcessLike, code: int) -> str:
    """Returns how a process has ended."""
    if code == ExitCode.OK:
        return _FINISHED
    if number := signal_of(code):
        return f"killed by signal {number}"
    line = error_line(process.last_words) if code in (ExitCode.FAILED, ExitCode.PEER_LOST) else ""
    return f"{describe(code)}; {line}" if line else describe(code)
