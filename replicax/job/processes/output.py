"""The output of a task: split into lines for the terminal, stored raw in its log, and searched for a traceback."""

from __future__ import annotations

import codecs
import collections
import itertools
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from replicax.errors import LaunchError
from replicax.job.processes.terminal import Terminal

_LONGEST_LINE = 65_536
_LINES_KEPT = 500
_LONGEST_TRACEBACK = 300
_LINES_WITHOUT_TRACEBACK = 20
_LINES_SHOWN_FIRST, _LINES_SHOWN_LAST = 10, 29  # of a traceback
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^Fatal Python error: ")
# Of a dump of stacks only those of the thread that crashed ("Current thread") and of the one that runs the script say
# something about it. A stack that was cut may be that one.
_OTHER_STACKS = re.compile(
    r'(?:^Thread 0x.*\n(?:  (?!\.\.\.$|.*\bchild\.py", line \d+ in <module>$).*(?:\n|\Z))*(?!  )\n?'
    r"|^Extension modules: .*(?:\n|\Z))+",
    re.MULTILINE,
)
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
# A process that dies without a Python error prints many lines of stacks, which only the log shows.
_DEATH = re.compile(
    r"^Fatal Python error: |^\*\*\* Check failure stack trace: "
    # JAX's coordination service, in a process that waits for one which has been ended.
    r"|^[EF]\d{4} \S+ +\d+ \S+\] (Polled an error from coordination service|Terminating process because the JAX )"
)
# XLA prints it for each group of devices: "[Gloo] Rank 1 is connected to 3 peer ranks. ...", in pieces, which the
# threads of several devices mix.
_NOISE = re.compile(
    r"(?=.*(\[Gloo\] Rank |peer ranks))"
    r"(\[Gloo\] Rank |\d+| is connected to | peer ranks\. |Expected number of connected peer ranks is : )+$"
)
# Into a pipe Keras draws its progress bar as one line after the other.
_KERAS_BAR = re.compile(r"^\x1b\[1m *\d+/(\d+|Unknown)\x1b\[0m .*━")

# Bars move the cursor, hide it and erase their line, as rich's do: here that would erase the task's name before it.
_CURSOR = re.compile(r"\x1b\[\??[\d;]*[A-HJKSTfhlsu]")
_HALF_A_SEQUENCE = re.compile(r"\x1b(\[[\d;?]*)?$")


class StreamLike(Protocol):
    """Takes the standard output or standard error of a task."""

    last_lines: collections.deque[str]

    def feed(self, chunk: bytes, final: bool = False) -> None:
        """Takes some output; `final` says that it is the last."""


class LogLike(Protocol):
    """Takes all output of a task."""

    path: Path | None

    def write(self, chunk: bytes) -> None:
        """Appends some output."""

    def close(self) -> None:
        """Ends it."""


class NoLog:
    """The log of a task whose output is not kept."""

    path: Path | None = None

    def write(self, chunk: bytes) -> None:
        """Forgets it."""

    def close(self) -> None:
        """Does nothing."""


class Log:
    """The file with everything that a task prints, byte for byte; all attempts but the first append to it."""

    def __init__(self, path: Path, attempt: int):
        self.path: Path | None = path
        self._lock = threading.Lock()
        try:
            self._file = path.open("ab" if attempt else "wb", buffering=0)
        except OSError as error:
            raise LaunchError(f"A log cannot be written: {error}. Choose another --log-dir.") from error
        if attempt:
            self.write(f"=== attempt {attempt} ===\n".encode())

    def write(self, chunk: bytes) -> None:
        """Appends some output. A full disk must not stop the task, so output that cannot be written is lost."""
        with self._lock:
            try:
                self._file.write(chunk)
            except (OSError, ValueError):
                return

    def close(self) -> None:
        """Closes the file; later output is lost."""
        with self._lock:
            self._file.close()


class Stream:
    """Standard output or standard error of one task, on its way to the terminal."""

    def __init__(self, terminal: Terminal, task: str, number: int, error: bool):
        self._terminal, self._task, self._number, self._error = terminal, task, number, error
        # Bars rewrite their own line. Those of one task are shown; a terminal that cannot gets the last state of each.
        self._with_bars = number == 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""
        self._drawn = self._dies = False
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_LINES_KEPT)

    def feed(self, chunk: bytes, final: bool = False) -> None:
        """Takes some output; `final` says that it is the last."""
        text = self._unfinished + self._decoder.decode(chunk, final)
        *lines, self._unfinished = text.split("\n")
        for line in lines:
            self._line(line)
        if self._unfinished and (final or len(self._unfinished) > _LONGEST_LINE):
            self._line(self._unfinished)
            self._unfinished = ""
        self._draw()

    def _line(self, line: str) -> None:
        line = line.removesuffix("\r")  # A Windows line break.
        shown = _last_state(line)
        if self._drawn:
            self._drawn = False
            self._terminal.end_bar()
        if (line and not shown) or _NOISE.match(shown):
            return  # It moves the cursor only, or only the log has it.
        self.last_lines.append(shown)
        self._dies = self._dies or bool(self._error and _DEATH.match(shown))
        if self._dies:
            return
        if self._with_bars or not ("\r" in line or _KERAS_BAR.match(line)):
            self._terminal.line(self._task, self._number, shown, self._error)

    def _draw(self) -> None:
        if "\r" not in self._unfinished and not self._drawn:
            return
        if self._with_bars and self._terminal.shows_bars:
            self._drawn = True
            self._terminal.bar(self._task, self._number, _last_state(_HALF_A_SEQUENCE.sub("", self._unfinished)))
        # Earlier states are dropped, but the fact stays that this line had some.
        self._unfinished = self._unfinished[max(self._unfinished.rstrip("\r").rfind("\r"), 0) :]


def _last_state(line: str) -> str:
    """Returns what a terminal shows of a line that rewrites itself with `\\r` or `\\b`."""
    return next((part for part in reversed(_CURSOR.sub("", line.replace("\b", "")).split("\r")) if part), "")


def last_words(streams: Sequence[StreamLike], script_ended: bool = False) -> str:
    """Returns the last traceback in a task's standard error, or, where that is empty, in its standard output.

    If the script has ended by itself, the process has crashed after it: its stacks are none of the script's words.
    """
    output, error = (list(stream.last_lines) for stream in streams)
    if script_ended:
        error = list(itertools.takewhile(lambda line: not _DEATH.match(line), error))
    return last_traceback(error if any(line.strip() for line in error) else output)


def last_traceback(lines: Sequence[str]) -> str:
    """Returns the last traceback among `lines`, with those chained to it, and all that follows; or the last lines."""
    lines = _OTHER_STACKS.sub("  ... more of this is in the log ...\n", "\n".join(lines)).split("\n")
    starts = [number for number, line in enumerate(lines) if _TRACEBACK.search(line)]
    if not starts or len(lines) - starts[-1] > _LONGEST_TRACEBACK:  # An old traceback belongs to something else.
        return "\n".join(lines[-_LINES_WITHOUT_TRACEBACK:]).strip("\n")
    start = starts.pop()
    while starts and any(line.startswith(_CHAINED) for line in lines[starts[-1] : start]):
        start = starts.pop()
    return "\n".join(lines[start:]).strip("\n")


def error_line(words: str) -> str:
    """Returns the line of a task's last words that names the error."""
    lines = [line for line in words.splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    # It is the line after the last frame; notes may follow.
    raised = [line for line in lines[starts[-1] + 1 :] if not line[0].isspace()] if starts else []
    if raised:
        return raised[0].strip()
    # A report of the health monitor, or a death in compiled code, after which come stacks.
    if lines and lines[0].startswith(("replicax: ", "Fatal Python error: ")):
        return lines[0].strip()
    return lines[-1].strip() if lines else ""


def shortened(text: str) -> str:
    """Returns a text without its middle if it has many lines."""
    lines = text.splitlines()
    left_out = len(lines) - _LINES_SHOWN_FIRST - _LINES_SHOWN_LAST
    if left_out <= 1:
        return text
    note = f"  ... {left_out} more lines are in the log ..."
    return "\n".join([*lines[:_LINES_SHOWN_FIRST], note, *lines[-_LINES_SHOWN_LAST:]])
