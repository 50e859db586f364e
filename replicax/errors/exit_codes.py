"""The exit codes of a worker and of `replicax run`, and what each means for a restart.

| Code | Name | Who ends so | Does a restart help? |
| --- | --- | --- | --- |
| 0 | `OK` | the job did what it should | no |
| 1 | `FAILED` | the script raised | yes |
| 2 | `USAGE` | wrong options or settings | no: they would be wrong again |
| 70 | `STALLED` | all workers, when one made no progress for too long | yes |
| 71 | `PEER_LOST` | a worker that cannot go on because another one has gone | yes |
| 72 | `DIVERGED` | workers that were about to run different programs | no: the script is wrong |
| 75 | `RESUME` | a worker that was preempted (SIGTERM) and saved, or left an elastic job | yes; it is not a failure |
| 128 + n | | a process that signal n ended: 130 Ctrl-C, 134 abort, 137 kill, 139 segfault, 143 SIGTERM | yes |

75 is `EX_TEMPFAIL` of BSD, which schedulers know as "try again later". The other numbers are in the same range, which
shells and test tools do not use. They are part of the public interface: batch scripts and Kubernetes policies name them
(`replicax template`).
"""

from __future__ import annotations

import enum
import signal

_SIGNALS = 128  # A shell reports 128 + n for a process that signal n ended.


class ExitCode(enum.IntEnum):
    """The exit codes that a process of a job chooses; `replicax.errors.exit_codes` explains each."""

    OK = 0
    FAILED = 1
    USAGE = 2
    STALLED = 70
    PEER_LOST = 71
    DIVERGED = 72
    RESUME = 75


_MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "an error in the script",
    ExitCode.USAGE: "wrong options or settings",
    ExitCode.STALLED: "no progress for too long",
    ExitCode.PEER_LOST: "another worker was gone",
    ExitCode.DIVERGED: "the workers' programs differ",
    ExitCode.RESUME: "saved, to be resumed",
}
_FINAL = frozenset({ExitCode.OK, ExitCode.USAGE, ExitCode.DIVERGED})


def from_signal(number: int) -> int:
    """Returns the exit code for a process that signal `number` ended."""
    return _SIGNALS + number


def from_returncode(returncode: int) -> int:
    """Returns the exit code for a return code of `subprocess`, where -n means signal n."""
    return from_signal(-returncode) if returncode < 0 else returncode


def signal_of(code: int) -> int:
    """Returns the signal that ended a process with this exit code; 0 if none did."""
    return max(0, code - _SIGNALS)


def is_restartable(code: int) -> bool:
    """Returns whether the same job may succeed when it is started again."""
    return code not in _FINAL


def describe(code: int) -> str:
    """Returns the meaning of an exit code in a few words.

    >>> describe(75), describe(137), describe(3)
    ('exit code 75: saved, to be resumed', 'exit code 137: ended by SIGKILL', 'exit code 3')
    """
    if code in _MEANINGS:
        return f"exit code {code}: {_MEANINGS[ExitCode(code)]}"
    if code - _SIGNALS in set(signal.Signals):
        return f"exit code {code}: ended by {signal.Signals(code - _SIGNALS).name}"
    return f"exit code {code}"
