"""One terminal for the output of many processes: whole lines, each with the name of its task, and one progress bar.

Behind the bar, or in its place while there is none, stands how the job is doing.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from typing import TextIO

_COLORS = ("cyan", "yellow", "magenta", "green", "blue", "red")
_RESET = "\x1b[0m"
_CLEAR_LINE = "\r\x1b[2K"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"  # A bar that wraps could not be rewritten.
_NARROWEST = 20


class Terminal:
    """The terminal of the launcher and its tasks. Threads can share it."""

    def __init__(self, out: TextIO, err: TextIO, environment: Mapping[str, str] = os.environ):
        self._out, self._err = out, err
        self._colored = not environment.get("NO_COLOR")
        self._lock = threading.Lock()
        self._bar = self._status = ""
        self._broken: set[TextIO] = set()

    @property
    def shows_bars(self) -> bool:
        """Whether a line can be rewritten: whether standard output is a terminal and not a file or a pipe."""
        return self._out.isatty()

    def bar_size(self, task: str) -> tuple[int, int]:
        """Returns the columns and rows for a program that writes after the name of `task`."""
        columns, rows = shutil.get_terminal_size()
        return max(columns - len(_tag(task)), _NARROWEST), rows

    def line(self, task: str, number: int, text: str, error: bool = False) -> None:
        """Writes a line of a task, without its end; the index among all tasks, `number`, determines the colour."""
        stream = self._err if error else self._out
        self._write(stream, f"{self._colored_tag(stream, task, number)}{text}\n")

    def bar(self, task: str, number: int, text: str) -> None:
        """Redraws the progress bar, which stays below all lines until `end_bar`."""
        with self._lock:
            self._bar = f"{self._colored_tag(self._out, task, number)}{_NO_WRAP}{_closed(text)}"
            self._put(self._out, f"{_CLEAR_LINE}{self._last_line}")

    def end_bar(self) -> None:
        with self._lock:
            if self._bar:
                self._bar = ""
                self._put(self._out, f"{_CLEAR_LINE}{self._last_line}")

    def status(self, text: str) -> None:
        """Redraws how the job is doing, where lines can be rewritten; "" removes it."""
        if not self.shows_bars:
            return
        with self._lock:
            self._status = text
            self._put(self._out, f"{_CLEAR_LINE}{self._last_line}")

    @property
    def _last_line(self) -> str:
        if not self._bar and not self._status:
            return ""
        bar = self._bar or f"{self._styled(self._out, _tag('replicax'), 'bold')}{_NO_WRAP}"
        between = "  " if self._bar and self._status else ""
        return f"{bar}{between}{self._status}{_WRAP}"

    def say(self, text: str) -> None:
        """Writes a line of the launcher itself."""
        self._write(self._err, f"{self._styled(self._err, _tag('replicax'), 'bold')}{text}\n")

    def show(self, text: str) -> None:
        """Writes lines unchanged to standard error."""
        self._write(self._err, f"{text}\n")

    def _write(self, stream: TextIO, text: str) -> None:
        with self._lock:
            if self._last_line:
                self._put(self._out, _CLEAR_LINE)
            self._put(stream, text)
            if self._last_line:
                self._put(self._out, self._last_line)

    def _put(self, stream: TextIO, text: str) -> None:
        """Writes, unless the pipe is closed. That must not stop the tasks, whose logs go on."""
        if stream in self._broken:
            return
        try:
            try:
                stream.write(text)
            except UnicodeEncodeError:
                stream.write(text.encode("ascii", "replace").decode())
            stream.flush()
        except (OSError, ValueError):
            self._broken.add(stream)

    def _colors(self, stream: TextIO) -> bool:
        return self._colored and stream.isatty()

    def _colored_tag(self, stream: TextIO, task: str, number: int) -> str:
        return self._styled(stream, _tag(task), _COLORS[number % len(_COLORS)])

    def _styled(self, stream: TextIO, text: str, style: str) -> str:
        """Returns a text in a style of rich's, or as it is where the stream shows no styles."""
        if not self._colors(stream):
            return text
        from rich.color import ColorSystem
        from rich.style import Style

        return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)


def _closed(text: str) -> str:
    """Returns a text whose colours end with it, also if its end is missing."""
    return f"{text}{_RESET}" if "\x1b[" in text else text


def _tag(name: str) -> str:
    return f"[{name}] "
