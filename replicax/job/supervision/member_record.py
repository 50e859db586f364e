"""The members of a job whose workers come and go, as its launcher learns of them; and the membership log."""

from __future__ import annotations

from collections.abc import Sequence

from replicax.errors.exit_codes import ExitCode, describe
from replicax.group.membership.quorum import Life
from replicax.group.membership.membership_log import MembershipLog
from replicax.job.processes.events import ProcessLike
from replicax.job.processes.output import error_line

_SIGNALS = 128
_SILENT = "gave no sign of life"
_FINISHED, _AT_ITS_END = "finished", "is at its end"
#: How newcomers end for whom nobody is left.
TOO_LATE = "it came when the training was done"


class Attendance:
    """Notes what happens to the workers of one attempt, and writes it to the log.

    Args:
        log: The membership log; None if there is none.

    Attributes:
        world: The number of the newest world that a member has told of; 0 before.
        members: Its members; the first one is the chief.
        lives: The number of the newest life of each worker that was ever started.
    """

    def __init__(self, log: MembershipLog | None = None):
        self.world = 0
        self.members: tuple[Life, ...] = ()
        self.lives: dict[int, int] = {}
        self._log = log
        self._pids: dict[Life, int] = {}
        self._reasons: dict[Life, str] = {}  # of those that leave or were ended
        self._ends: dict[Life, str] = {}
        self._seen: set[Life] = set()  # all that were ever members

    def start(self, life: Life, pid: int, host: str = "") -> None:
        """Notes that a process has been started; `host` says where, if it is not this machine."""
        self.lives[life.index], self._pids[life] = life.number, pid
        if self._log is not None:
            self._log.start(life, pid, host)

    def enter(self, number: int, lives: Sequence[Life]) -> str:
        """Notes a new world; returns why it is a new one, or "" if it is known already."""
        if number <= self.world:
            return ""
        why = self._why(lives)
        self.world, self.members = number, tuple(lives)
        self._seen.update(lives)
        if self._log is not None:
            self._log.world(number, lives, why)
        return why

    def leave(self, life: Life, reason: str) -> None:
        """Notes that a member is going to leave the others."""
        self._reasons[life] = reason
        if self._log is not None:
            self._log.leave(life, reason)

    def is_leaving(self, life: Life) -> bool:
        """Returns whether a process has said that it leaves the others."""
        return self._reasons.get(life, _SILENT) not in (_SILENT, TOO_LATE)

    def reason(self, life: Life) -> str:
        """Returns why a process leaves or was ended; "" if it is not known."""
        return self._reasons.get(life, "")

    def is_at_its_end(self, life: Life) -> None:
        """Notes that the script of a process has come to its end, though the process has not."""
        self._ends.setdefault(life, _AT_ITS_END)

    def is_silent(self, life: Life) -> None:
        """Notes that a process gives no sign of life."""
        self._reasons.setdefault(life, _SILENT)

    def is_left_out(self, life: Life) -> bool:
        """Returns whether the others have gone on without a process, or are about to."""
        return self._reasons.get(life) == _SILENT or (self.world > 0 and life not in self.members)

    def dismiss(self, life: Life) -> None:
        """Notes that a process is ended since it came when the training was done."""
        self._reasons[life] = TOO_LATE

    def is_dismissed(self, life: Life) -> bool:
        """Returns whether a process is ended since it came too late."""
        return self._reasons.get(life) == TOO_LATE

    def end(self, life: Life, process: ProcessLike, code: int, asked: bool) -> None:
        """Notes that a process has ended; `asked` says whether the launcher is ending all of them."""
        reason = self._reasons.get(life, "") or _reason(process, code)
        if asked and not self._reasons.get(life) and code != ExitCode.OK:
            reason = f"the launcher has ended it ({reason})"
        self._ends[life] = reason
        if self._log is not None:
            self._log.end(life, self._pids.get(life, 0), code, reason)

    def was_member(self, life: Life) -> bool:
        """Returns whether a process has ever taken part."""
        return life in self._seen

    def is_chief(self, life: Life) -> bool:
        """Returns whether a process is the first member of the newest world."""
        return self.members[:1] == (life,)

    def _why(self, lives: Sequence[Life]) -> str:
        if not self.world:
            return "the job has begun"
        before = {life.index for life in self._seen}
        lost = [life for life in self.members if life not in lives]
        came = [life for life in lives if life not in self.members]
        texts = [f"worker {life.index} {self._how(life)}" for life in lost]
        texts += [f"worker {life.index} {'is back' if life.index in before else 'has joined'}" for life in came]
        return ", ".join(texts) or "the same members go on with new connections"

    def _how(self, life: Life) -> str:
        if self.is_leaving(life):
            return f"has left ({self._reasons[life]})"
        ended = self._ends.get(life)
        if ended in (_AT_ITS_END, _FINISHED):
            return "has come to the end of its script"
        return f"was lost ({ended})" if ended and ended != _SILENT else _SILENT


def _reason(process: ProcessLike, code: int) -> str:
    """Returns how a process has ended."""
    if code == ExitCode.OK:
        return _FINISHED
    if code > _SIGNALS:
        return f"killed by signal {code - _SIGNALS}"
    line = error_line(process.last_words) if code in (ExitCode.FAILED, ExitCode.PEER_LOST) else ""
    return f"{describe(code)}; {line}" if line else describe(code)
