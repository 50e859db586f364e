"""The processes of a job: the launcher starts them, reads their output, and ends them with all that they started.

Each task leads its own session, and so its own process group. Ctrl-C in the terminal reaches only the launcher, which
decides what to do, and one signal ends a task with all processes that it started. There is a limit: a process that
opens a session of its own, as daemons do, is out of reach.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicax.compat.systems import kill_group
from replicax.errors import LaunchError
from replicax.job.processes import child
from replicax.job.processes.events import (
    CallReturned,
    ClusterLeft,
    EventSink,
    FoundSilent,
    ProcessEnded,
    ProcessLike,
    ScriptEnded,
    WaitingForOthers,
    member_news,
)
from replicax.job.processes.job_ledger import TaskLedger
from replicax.job.processes.output import LogLike, StreamLike, last_words
from replicax.job.processes.reaper import Guard
from replicax.job.processes.task import PlannedTask, Program

_CHUNK = 65_536
_SECONDS_BETWEEN_LOOKS = 0.2  # at whether the process has ended, while it writes nothing
_SECONDS_FOR_THREADS = 2.0  # Its listener ends by itself, at the next look after the end of the process.
# A dying process loses its connections before the launcher learns of its end, and a peer may fail in between.
_SECONDS_TO_HEAR = 0.05


@dataclasses.dataclass(frozen=True)
class Outlets:
    """Where the output of a task's process goes."""

    streams: tuple[StreamLike, StreamLike]  # for its standard output and its standard error
    log: LogLike  # for both, byte for byte
    size: tuple[int, int] | None = None  # columns and rows, if its standard output shall be a terminal; None for a pipe


class Process:
    """One task's process on this machine; create it in the main thread: Linux ends a child with its starting thread."""

    waits = is_lost = False

    def __init__(self, task: PlannedTask, program: Program, outlets: Outlets, events: EventSink, guard: Guard):
        self.task = task
        self._log, self._streams, self._events, self._guard = outlets.log, outlets.streams, events, guard
        self._ledger = TaskLedger(task, outlets.log.path)
        self.last_words = ""
        self.told: ScriptEnded[ProcessLike] | None = None
        self.meets, self.has_left = 0, False
        self._ended = threading.Event()
        with contextlib.ExitStack() as ours:
            pipes = [_pty(outlets.size) if outlets.size else os.pipe(), os.pipe(), os.pipe()]
            self._sources = [source for source, _ in pipes]
            for _, end in pipes:
                ours.callback(os.close, end)
            try:
                self._popen = _start(task, program, self._ledger.environment(), *(end for _, end in pipes))
            except OSError as error:
                for source in self._sources:
                    os.close(source)
                raise LaunchError(f"The process of {task.name} cannot be started: {error}.") from error
        self._listener, self._waiter = (
            threading.Thread(target=target, name=f"replicax-launch-{task.name}", daemon=True)
            for target in (self._listen, self._wait)
        )
        self._ledger.started(self.pid)
        guard.watch([self.pid])
        self._listener.start()
        self._waiter.start()

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._popen.pid

    @property
    def log_path(self) -> Path | None:
        return self._log.path

    def send(self, number: int) -> None:
        """Sends a signal to the task alone, and not to the processes that it started."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the task and all processes of its group."""
        if self._popen.returncode is None:
            kill_group(self.pid)

    def tidy_up(self) -> int:
        """Ends the processes that an ended task has left behind; returns its return code, -n for signal n."""
        self.kill()  # Before the system may reuse the id, so that it still belongs to this group.
        self._waiter.join()
        returncode = self._popen.wait()
        self._ended.set()
        self._listener.join(_SECONDS_FOR_THREADS)
        self._log.close()
        told = self.told
        self._ledger.ended(self.pid, *((told.code, told.time) if told is not None else (returncode,)))
        self._guard.forget(self.pid)
        return returncode

    def _wait(self) -> None:
        """Reports the end of the process, but leaves it a zombie, so that the system does not reuse its id."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:  # macOS before Python 3.13
            self._popen.wait()
        self._events.put(ProcessEnded(self, time.monotonic() - _SECONDS_TO_HEAR))

    def _listen(self) -> None:
        """Reads the output and the messages of the process to their end."""
        *sources, news = self._sources
        with selectors.DefaultSelector() as selector:
            for source in self._sources:
                os.set_blocking(source, False)
                selector.register(source, selectors.EVENT_READ)
            heard = b""
            while any(source in selector.get_map() for source in self._sources):
                has_ended = self._ended.is_set()  # Before the look: its last words may come just after one.
                ready = [key.fd for key, _ in selector.select(_SECONDS_BETWEEN_LOOKS)]
                if not ready and has_ended:
                    break  # A process that cannot be killed holds the other end.
                for source, stream in zip(sources, self._streams, strict=True):
                    # Output from before a message must be read before it, even if it is found later.
                    if (source in ready or news in ready) and source in selector.get_map():
                        self._read(source, stream, selector)
                if news in ready:
                    chunk = os.read(news, _CHUNK)
                    *lines, heard = (heard + chunk).split(b"\n")
                    if not chunk:  # The end of the process has cut off the rest of a line.
                        selector.unregister(news)
                    for line in filter(None, lines):
                        self._take_news(json.loads(line))
        for source, stream in zip(sources, self._streams, strict=True):
            stream.feed(b"", final=True)
            os.close(source)
        os.close(news)
        if self.told is None:  # Otherwise what came later is not of its script: JAX may abort the process at its end.
            self.last_words = last_words(self._streams)

    def _read(self, source: int, stream: StreamLike, selector: selectors.BaseSelector) -> None:
        """Reads until there is nothing more, or the other end is closed."""
        try:
            while chunk := os.read(source, _CHUNK):
                self._log.write(chunk)
                stream.feed(chunk)
        except BlockingIOError:
            return
        except OSError:  # On Linux: the other end of a terminal is closed.
            pass
        selector.unregister(source)

    def _take_news(self, told: dict[str, Any]) -> None:
        """Reports a message of the task. Its error goes to the log, and is not shown yet."""
        if "meets" in told:
            self.meets = told["meets"]
            self._events.put(WaitingForOthers(self, self.meets, bool(told.get("watches"))))
            return
        if "returned" in told:
            self._events.put(CallReturned(self, tuple(told["returned"])))
            return
        if "silent" in told:
            self._events.put(FoundSilent(told["silent"], told["life"]))
            return
        if "leaves" in told:
            self.has_left = True
            self._events.put(ClusterLeft(self))
            return
        news = member_news(self, told)
        if news is not None:
            self._events.put(news)
            return
        words = told["words"].strip("\n")
        if words:
            self._log.write(f"{words}\n".encode())
        self.last_words = words or last_words(self._streams, script_ended=True)
        event = ScriptEnded[ProcessLike](self, told["code"], told["time"], tuple(told.get("blames", ())))
        self.told = self.told or event  # The first says who is to blame; the end of the script may follow.
        self._events.put(event)


def _start(
    task: PlannedTask, program: Program, told: Mapping[str, str], out: int, err: int, news: int
) -> subprocess.Popen[bytes]:
    ours = [child.__file__, str(os.getpid()), str(news), program.kind]
    return subprocess.Popen(
        [sys.executable, *ours, program.target, *program.arguments],
        env={**task.environment, **told},
        stdin=subprocess.DEVNULL,  # Many tasks cannot share one keyboard.
        stdout=out,
        stderr=err,
        pass_fds=[news, *program.files],
        start_new_session=True,
    )


def _pty(size: tuple[int, int]) -> tuple[int, int]:
    """Returns both ends of a terminal, for a task that should see that it writes to one."""
    import pty  # Not on Windows.
    import termios
    import tty

    columns, rows = size
    source, end = pty.openpty()
    tty.setraw(end)  # The real terminal translates line ends.
    termios.tcsetwinsize(end, (rows, columns))
    return source, end
