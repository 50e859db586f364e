"""Processes that read and map rows beside the training, for functions in pure Python, which hold Python's lock.

Each thread of a pass asks one of them, and waits. They run `main`; the script that is trained is not run in them. They
stay from one pass to the next, and end when nobody refers to their batches any more, or with the process that started
them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from replicax.data.row_plans import Item
from replicax.errors import ArgumentError, BatchError
from replicax.runtime.ending import only_here


class RowProcesses:
    """Processes for the rows of one source: as many as are asked at a time.

    Args:
        reading: Returns what becomes of rows in the pass of a number; it is sent to them.
        to_end_s: How long one that is told to end may read on before it is killed.
    """

    def __init__(self, reading: Callable[[int, Sequence[Item]], list[Any]], to_end_s: float = 5.0):
        self._reading, self._to_end_s = reading, to_end_s
        self._idle: list[_RowProcess] = []
        weakref.finalize(self, only_here(_end), self._idle)

    def rows(self, number: int, items: Sequence[Item]) -> list[Any]:
        """Returns what becomes of rows in the pass of a number; in the process that is free, or a new one."""
        process = self._idle.pop() if self._idle else _RowProcess(self._reading, self._to_end_s)
        try:
            found = process.asked((number, items))
        except BaseException:
            process.end()  # It may answer later, when something else is asked.
            raise
        self._idle.append(process)
        if isinstance(found, Exception):
            raise found
        return found


def _end(idle: list[_RowProcess]) -> None:
    while idle:
        idle.pop().end()


class _RowProcess:
    """A process, as seen from outside."""

    def __init__(self, reading: Callable[[int, Sequence[Item]], list[Any]], to_end_s: float):
        self._to_end_s = to_end_s
        # It shall not take the accelerators that the training has.
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", f"from {__name__} import main; main()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        try:
            self._send(sys.path)
            self._send(reading)
        except Exception as error:
            self.end()
            if isinstance(error, OSError):
                raise
            raise ArgumentError(
                f"`processes`: the source or a function cannot be sent to another process ({error}). Make what cannot "
                "be sent, such as a lock, inside of the function; or use threads."
            ) from error

    def asked(self, what: Any) -> Any:
        """Returns the answer: rows, or an exception."""
        try:
            self._send(what)
            assert self._process.stdout is not None
            return pickle.load(self._process.stdout)
        except (EOFError, OSError) as error:
            self.end()  # One that dumps its memory takes a while.
            raise BatchError(
                f"A process that reads rows has ended with exit code {self._process.returncode}: it was killed, or a "
                "function ended it. Its last words stand above."
            ) from error

    def _send(self, what: Any) -> None:
        assert self._process.stdin is not None
        _dumped(what, self._process.stdin)

    def end(self) -> None:
        """Ends the process."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        try:
            self._process.wait(self._to_end_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _dumped(what: Any, stream: IO[bytes]) -> None:
    import cloudpickle  # Functions of a script, too, which the process does not run.

    cloudpickle.dump(what, stream)
    stream.flush()


def _messages(stream: IO[bytes]) -> Iterator[Any]:
    with contextlib.suppress(EOFError):
        while True:
            yield pickle.load(stream)


def main() -> None:
    """Answers until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training, which ends this.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # Functions may print: that is no answer.
        messages = _messages(sys.stdin.buffer)
        sys.path[:] = next(messages)
        reading = next(messages)
        for number, items in messages:
            try:
                answer: Any = reading(number, items)
            except Exception as error:
                answer = error
            _dumped(answer, answers)
