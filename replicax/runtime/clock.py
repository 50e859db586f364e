"""The clock of the ledger: each moment of the thread that trains belongs to exactly one class.

In a job, the first code of a process starts the clock (`job/processes/child.py` loads this file by its path, before
the script and without JAX: so it imports only Python's own modules). From then on there are three sources:

- `runtime/activity.py` says what the process is doing: `turn`. `section` puts a name over all that is done in a block,
  such as an evaluation, but for tracing and compiling.
- JAX says how long it has traced and compiled (`compiled`), and when the thread waits for an array (`waits`).
- The clock's own thread looks at the Python stack now and then: it finds imports, and the lines of the user's script
  that take the time. It also finds times in which the whole process did not run.

Once a second that thread writes what has been counted, as a line of JSON; `tools/ledger/` reads those of all workers. A
program that runs on the devices while Python does something else hides that: such time counts as computing. Until
when the devices have computed is known from steps that are awaited now and then (`took`).
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import json
import math
import os
import queue
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

START = "start"
MEETING = "meeting"
IMPORT = "import"
TRACE = "trace"
COMPILE = "compile"
FIRST_VALUES = "first values"
INPUT = "waiting for input"
COMPUTING = "computing"
WAITING = "waiting for others"
USER = "callbacks and user code"
EVALUATION = "evaluation"
CHECKPOINT = "checkpoint"
STALL = "stall"
LOST = "lost work"
RESTART = "restart"
ENDING = "ending"

#: All classes, in the order of a job's life. Those that no process can know of itself are found by the reader.
CLASSES = (
    START, MEETING, IMPORT, TRACE, COMPILE, FIRST_VALUES, INPUT, COMPUTING, WAITING, USER, EVALUATION, CHECKPOINT,
    STALL, LOST, RESTART, ENDING,
)  # fmt: skip

_ABSORBED = frozenset({INPUT, COMPUTING, WAITING, USER})  # what a section puts its name over
_HIDDEN = frozenset({INPUT, USER})  # what costs nothing while the devices compute
_SECONDS_BETWEEN_LINES = 1.0  # of the ledger
_SECONDS_BETWEEN_LOOKS = 0.1  # at what the script does; at imports more often
_SECONDS_BETWEEN_LOOKS_AT_IMPORTS = 0.02
_SECONDS_ASLEEP = 1.5  # If the clock's thread comes so much later than it wanted, the process may not have run.
_MOST_PLACES = 3  # in a line
_LONGEST = 200  # text of shapes
_READER = "replicax-prefetch"  # The thread that the thread that trains waits for.
_IMPORTLIB = "<frozen importlib"
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NOT_THE_USERS = tuple(
    {os.path.dirname(os.__file__), sys.prefix, sys.base_prefix, _OURS, os.path.realpath(sys.prefix)} - {""}
)


class Clock:
    """Counts the time of one thread, and writes it to a file."""

    def __init__(self, path: str):
        self.thread = threading.main_thread().ident
        # The thread that trains counts at each turn, and the clock's own where it looks. Reentrant: a signal's handler
        # may turn the clock in the middle of a turn.
        self._lock = threading.RLock()
        # Turns that are not counted yet: base, time, and the program if one is called. While nothing decides over them
        # but what is in them (`_is_plain`), the thread that trains only appends them, which takes no lock.
        self._turns: collections.deque[tuple[str, float, str | None]] = collections.deque()
        self._is_plain = True
        self._since = self._begin = time.monotonic()
        self._wall = time.time() - self._begin
        self._base = self._current = USER
        self._sections: list[str] = []
        self._seconds: dict[str, float] = dict.fromkeys(CLASSES, 0.0)  # since the last line, ...
        self._written: dict[str, float] = dict.fromkeys(CLASSES, 0.0)  # ... and in all lines
        self._steps: dict[str, int] = {}  # by program, its calls
        self._stepped = 0.0  # when the last one began
        self._places: collections.Counter[tuple[str, str]] = collections.Counter()
        self._notes: list[dict[str, object]] = []
        self._entered = self._begin  # when the class of now began
        self._pieces: list[tuple[float, float]] = []  # of it, what has been counted as something else
        self._computes: Callable[[], bool] | None = None  # whether the devices compute still; None if they do not
        self._until = 0.0  # when they are expected to be done
        self._takes: dict[str, float] = {}  # by program, how long the devices take
        self._later: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stops = threading.Event()
        self._is_ending = False
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._put({"begin": self._wall + self._begin, "pid": os.getpid()})
        self._writer = threading.Thread(target=self._run, name="replicax-ledger", daemon=True)
        self._writer.start()

    # The thread that trains.

    def turn(self, base: str, at: float) -> None:
        """Notes that the thread begins to do something else."""
        if self._is_plain:
            self._turns.append((base, at, None))
            return
        with self._lock:
            self._turn(base, at)

    def step(self, program: str, at: float) -> None:
        """Notes that the thread calls a program."""
        if self._is_plain:
            self._turns.append((COMPUTING, at, program))
            return
        with self._lock:
            self._turn(COMPUTING, at)
            if not self._sections:
                self._note_step(program, at)

    def sent(self, program: str, computes: Callable[[], bool], base: str, at: float) -> None:
        """Notes that the thread goes on; the devices compute a program as long as `computes` says so."""
        is_computing = computes()  # Else the call has waited for them, or they were quick.
        if self._is_plain and not is_computing:
            self.turn(base, at)
            return
        with self._lock:
            self._turn(base, at)
            if is_computing:
                self._until = (self._until if self._until > at else at) + self._takes.get(program, 0.0)
                self._computes, self._is_plain = computes, False
            else:
                self._end_computing()

    def enter(self, section: str) -> None:
        """Puts a name over what is done from now on, until `leave`."""
        with self._lock:
            at = time.monotonic()
            self._count(at)
            self._sections.append(section)
            self._choose(at)

    def leave(self) -> None:
        """Takes the last name away."""
        with self._lock:
            at = time.monotonic()
            self._count(at)
            if self._sections:  # The clock may have been started in the block.
                self._sections.pop()
            self._choose(at)

    def waits(self) -> str:
        """Notes that the thread begins to wait for an array; returns what it did, for `goes_on`."""
        with self._lock:
            self._take_turns()
            before = self._base
            if before in _ABSORBED:
                self._turn(COMPUTING, time.monotonic())
        return before

    def goes_on(self, before: str) -> None:
        """Notes that it has its array."""
        with self._lock:
            self._take_turns()
            if before is not self._base:
                self._turn(before, time.monotonic())
            if self._computes is not None and not self._computes():
                self._end_computing()

    def compiled(self, kind: str, seconds: float) -> None:
        """Notes that the thread has traced or compiled until now, for so many seconds, whatever it does else."""
        with self._lock:
            at = time.monotonic()
            self._count(at)
            first = begin = max(at - seconds, self._entered)
            own = at - begin
            while self._pieces and self._pieces[-1][1] > begin:  # Inner functions are traced while outer ones are.
                first, last = self._pieces.pop()
                own -= last - max(first, begin)
            self._pieces.append((min(first, begin), at))
            if self._current != kind:
                # Where the same time has been written already, the next line takes it back: the sum stays right.
                self._seconds[self._current] -= own
                self._seconds[kind] += own

    def took(self, program: str, seconds: float) -> None:
        """Notes how long the devices took for a program that was awaited."""
        with self._lock:
            self._takes[program] = min(seconds, 2 * self._takes.get(program, seconds))  # One may have been delayed.

    def note(self, **keys: object) -> None:
        """Writes something that has just happened, with what has been counted until now."""
        with self._lock:
            self._notes.append({"at": self._wall + time.monotonic(), **keys})
            self._write()

    def seconds(self) -> dict[str, float]:
        """Returns by class how long the thread has done that until now."""
        with self._lock:
            self._count(time.monotonic())
            return {name: self._written[name] + seconds for name, seconds in self._seconds.items()}

    def later(self, work: Callable[[], None]) -> None:
        """Lets the clock's thread do something that takes a while."""
        self._later.put(work)

    def ends(self) -> None:
        """Notes that the script has ended: what comes is the end of the process."""
        with self._lock:
            self._count(time.monotonic())
            self._is_ending = True
            self._choose(self._since)

    def _take_turns(self) -> None:
        """Counts the turns until now; with the lock."""
        turns = self._turns
        while turns:
            base, at, program = turns.popleft()
            current = self._current
            self._seconds[current] += at - self._since
            self._since, self._base = at, base
            if base is not current:
                self._current, self._entered = base, at
                if self._pieces:
                    self._pieces.clear()
            if program is not None:
                self._note_step(program, at)

    def _note_step(self, program: str, at: float) -> None:
        self._steps[program] = self._steps.get(program, 0) + 1
        self._stepped = at

    def _turn(self, base: str, at: float) -> None:
        self._count(at)
        self._base = base
        self._choose(at)

    def _choose(self, at: float) -> None:
        base = ENDING if self._is_ending and self._base == USER else self._base
        current = self._sections[-1] if self._sections and base in _ABSORBED else base
        if current != self._current:
            self._current, self._entered = current, at
            self._pieces.clear()
        self._is_plain = not self._sections and not self._is_ending and self._computes is None

    def _count(self, at: float, instead: str | None = None) -> None:
        self._take_turns()
        since, self._since = self._since, at
        until = since
        if self._computes is not None and self._current in _HIDDEN:
            until = at
            if not self._computes():
                until = min(max(self._until, since), at)
                self._end_computing()
            self._seconds[COMPUTING] += until - since
        self._seconds[instead or self._current] += at - until
        counted = at if instead else until
        if counted > since:
            self._pieces.append((since, counted))

    def _end_computing(self) -> None:
        self._computes, self._until = None, 0.0
        self._is_plain = not self._sections and not self._is_ending

    # The clock's own thread.

    def _run(self) -> None:
        cpu, woken = time.process_time(), time.monotonic()
        due = self._next_line(woken)
        while not self._stops.is_set():
            pause = _SECONDS_BETWEEN_LOOKS if self._stepped else _SECONDS_BETWEEN_LOOKS_AT_IMPORTS
            pause = min(pause, max(due - woken, 0.001))
            self._stops.wait(pause)
            before, woken, cpu_before, cpu = woken, time.monotonic(), cpu, time.process_time()
            with self._lock:
                self._take_turns()
                asleep = woken - before - pause
                if asleep > _SECONDS_ASLEEP and cpu - cpu_before < asleep / 4:
                    self._count(woken)
                    doing = max(self._seconds, key=lambda name: self._seconds[name])  # All else in a line is short.
                    self._seconds[doing] -= asleep
                    self._seconds[STALL] += asleep
                self._look()
                if woken >= due:
                    due = self._next_line(woken)
                    self._write()
            with contextlib.suppress(queue.Empty):
                while not self._is_ending:  # Python must not end while this thread is in compiled code.
                    self._later.get_nowait()()

    def _next_line(self, at: float) -> float:
        """Returns when the next line is written: on the second, so that the lines of all workers are comparable."""
        return (math.floor(self._wall + at) + 1) * _SECONDS_BETWEEN_LINES - self._wall

    def _look(self) -> None:
        """Looks where the thread is."""
        if self._current not in (USER, INPUT, CHECKPOINT, EVALUATION, FIRST_VALUES):
            return
        reader = None
        if self._current == INPUT:
            reader = next((each.ident for each in threading.enumerate() if each.name == _READER), None)
        with frames_of_threads() as frames:
            frame = frames.get(self.thread or 0)
            imports = self._current == USER and not self._stepped and _imports(frame)
            place = "" if imports else _place(frames.get(reader or 0)) or _place(frame)
        if imports:
            self._count(time.monotonic(), IMPORT)
        if place:
            self._places[self._current, place] += 1

    def _write(self) -> None:
        """Writes a line; with the lock."""
        at = time.monotonic()
        self._count(at)
        line: dict[str, Any] = {"at": round(self._wall + at, 6), "in": self._current}
        line["s"] = {name: round(seconds, 6) for name, seconds in self._seconds.items() if seconds}
        for name, seconds in self._seconds.items():
            self._written[name] += seconds
            self._seconds[name] = 0.0
        if self._steps:
            line["n"], self._steps = self._steps, {}
            line["last"] = round(self._wall + self._stepped, 6)
        if self._places:
            line["where"] = [[*key, count] for key, count in self._places.most_common(_MOST_PLACES)]
            self._places.clear()
        if self._notes:
            line["notes"], self._notes = self._notes, []
        self._put(line)

    def _put(self, line: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # A full disk must not stop a job; what cannot be written is lost.
            os.write(self._file, f"{json.dumps(line)}\n".encode())

    def close(self) -> None:
        """Writes the last line."""
        self._stops.set()
        self._writer.join(_SECONDS_BETWEEN_LINES)
        with self._lock:
            self._write()
            os.close(self._file)
            self._file = -1


#: The clock of this process; None if no ledger is kept. Beside `activity.now` it is the state of the process.
running: Clock | None = None


def start(path: str) -> None:
    """Starts the clock of this process, for the main thread."""
    global running
    running = Clock(path)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)


def stop() -> None:
    """Writes the last line; nothing is counted from then on."""
    global running
    ended, running = running, None
    if ended is not None:
        ended.close()


def _forget() -> None:
    """Leaves the ledger to the parent: a forked process has no thread to write it, and a lock that may be taken."""
    global running
    running = None


@contextlib.contextmanager
def section(name: str) -> Iterator[None]:
    """Puts a name over what the thread that counts does in the block, but for tracing and compiling."""
    clock = running
    if clock is None or threading.get_ident() != clock.thread:
        yield
        return
    clock.enter(name)
    try:
        yield
    finally:
        clock.leave()


def saving(save: Callable[_P, _T]) -> Callable[_P, _T]:
    """Notes when a checkpoint is there, and of which moment it is: that of the call."""

    @functools.wraps(save)
    def saved(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        begin = time.time()
        with section(CHECKPOINT):
            result = save(*args, **kwargs)
        note(saved=round(begin, 6))
        return result

    return saved


def restoring(restore: Callable[_P, _T]) -> Callable[_P, _T]:
    """Notes that a checkpoint has been read."""

    @functools.wraps(restore)
    def restored(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with section(CHECKPOINT):
            result = restore(*args, **kwargs)
        note(restored=True)
        return result

    return restored


def makes(program: str, code: str, shapes: Iterable[str]) -> None:
    """Notes that the thread that counts traces a program, of this code, for arguments of these shapes."""
    clock = running
    if clock is not None and threading.get_ident() == clock.thread:
        text = " ".join(shapes)
        short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} {zlib.crc32(text.encode()):08x}"
        clock.note(makes=program, code=code, of=short)


def made(program: str) -> None:
    """Notes that the thread that counts has compiled a program and called it once."""
    clock = running
    if clock is not None and threading.get_ident() == clock.thread:
        clock.note(made=program)


def note(**keys: object) -> None:
    """Writes something that has just happened to the ledger, if there is one."""
    clock = running
    if clock is not None:
        clock.note(**keys)


_walking = threading.Lock()


@contextlib.contextmanager
def frames_of_threads() -> Iterator[dict[int, FrameType]]:
    """Gives the Python frames of all threads, by their identifiers; they may be walked by `f_back` in the block.

    Python 3.11 may collect garbage while it makes the object of a frame. If a finalizer then gives up the GIL, the
    other thread can leave that frame, and Python writes into memory that holds something else by now
    (python/cpython#106883 mended `sys._current_frames` alone). So nothing is collected in the block.
    """
    with _walking:
        collects = sys.version_info < (3, 12) and gc.isenabled()
        if collects:
            gc.disable()
        try:
            yield sys._current_frames()
        finally:
            if collects:
                gc.enable()


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTLIB):
            return True
        frame = frame.f_back
    return False


def _place(frame: FrameType | None) -> str:
    """Returns the innermost line of the user's that a stack is in, such as `"train.py:41 on_epoch_end"`."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(("<", *_NOT_THE_USERS)):
            return f"{os.path.basename(name)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
