"""The current phase of this process: a few flags that the training loop sets and the monitor's thread reads.

The flags are one object of the module, `now`. Besides the monitor it is the only global state here, for three reasons:
a process does one thing at a time, every step of every loop sets the flags whether or not anybody watches, and the
reader is another thread, which context variables would not reach. Setting a phase is one assignment of a tuple, so
readers never see half of it.

Only the thread that trains counts. The process does not wait for what prefetch threads and the like do.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from time import monotonic
from types import TracebackType
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

import jax

from replicax.runtime import clock
from replicax.runtime.call_order import ArgumentValue, Order

_P = ParamSpec("_P")
_T = TypeVar("_T")

START = "start"  # Before the first computation of all processes: imports, building the model, reading the first files.
INPUT = "input"  # Waiting for the next batch.
FIRST_BATCH = "first batch"  # Waiting for the first one, which may take long: files are opened and buffers filled.
COMPILE = "compile"  # Tracing and compiling.
STEP = "step"  # In a compiled program that all processes run together.
WAIT = "wait"  # Waiting for the other processes, outside of a program.
CALLBACK = "callback"
CHECKPOINT = "checkpoint"
IDLE = "idle"  # Somewhere else in the user's code.
LEAVE = "leave"  # The script has ended and waits for the others': JAX needs all processes to leave together.

#: The phases in which a process can be slow without being stuck.
SLOW_PHASES = frozenset({START, FIRST_BATCH, COMPILE, CHECKPOINT})
#: The phases in which a process waits for the others.
WAITING_PHASES = frozenset({STEP, WAIT})

_OF_INPUT = frozenset({INPUT, FIRST_BATCH})

#: The ledger's names for the phases.
_CLASSES = {
    INPUT: clock.INPUT,
    FIRST_BATCH: clock.INPUT,
    COMPILE: clock.TRACE,  # JAX tells how much of it is compiling.
    STEP: clock.COMPUTING,
    WAIT: clock.WAITING,
    LEAVE: clock.ENDING,
}


def class_of(phase: str) -> str:
    """Returns the ledger's name for a phase."""
    return _CLASSES.get(phase, clock.USER)


def is_computed(array: jax.Array | None) -> bool:
    """Returns whether the devices compute an array still."""
    try:
        return array is not None and not array.is_ready()  # type: ignore[attr-defined]  # Missing in JAX's stub.
    except Exception:  # It was donated to the next program, or is not an array on a device.
        return False


_NOTHING: tuple[str, tuple[int, ...]] = ("", ())


def _accept(*_: object) -> None:
    """Does nothing: no monitor is installed."""


class ProgramMonitor(Protocol):
    """The watch over the other processes of a job: it compares the programs that this process runs with theirs."""

    order: Order  # of the calls that this process has made together with the others

    def is_new(self, name: str) -> bool:
        """Returns whether this is the first time that it is asked about a computation of this name."""

    def announce(self, name: str, fingerprint: str, arguments: tuple[ArgumentValue, ...] = ()) -> int:
        """Makes a program that this process is about to run first known to the others; returns its index."""

    def compare(self, index: int, wait: bool) -> None:
        """Compares an announced program with the others'; if `wait`, waits until all have announced theirs."""
        # ProgramMismatchError if a process is about to run another program, or this one with other arguments.

    def note_outside(self, what: str, kind: str) -> None:
        """Notes something that all processes do together outside of programs; of one `kind`, whatever its words."""


class _ThreadWait(NamedTuple):
    """How a thread that does not count waits for the others."""

    began: float
    at: tuple[str, tuple[int, ...]]  # what, and for which processes: all others if none are named
    phases: frozenset[str]  # of the thread that counts, in which it waits for this one


class Activity:
    """The activity of a process."""

    __slots__ = (
        "at",
        "called",
        "calls",
        "check",
        "exchanging",
        "explain",
        "fingerprint",
        "monitor",
        "moved",
        "noted",
        "program",
        "result",
        "seen_computing",
        "thread",
        "wait",
    )

    def __init__(self) -> None:
        self.at: tuple[str, float] = (IDLE, monotonic())  # the phase and when it began
        # How many programs of all processes it has begun to run (the number of its step), and of these how many it has
        # noted, once their programs were known.
        self.calls = self.noted = 0
        # When it began the last program, when the devices were last seen to compute, and when bytes were last seen to
        # flow between this process and others while it waited.
        self.called = self.seen_computing = self.moved = 0.0
        # The last program's name, and its fingerprint if the processes have compared it.
        self.program = self.fingerprint = ""
        self.exchanging: dict[int, _ThreadWait] = {}  # by thread, of those that do not count
        self.result: weakref.ref[jax.Array] | None = None  # an array that the last program computes, if it is known
        self.thread = threading.main_thread().ident  # the thread that counts
        # The object of the wait in phase `WAIT`, and the processes that it is for: all others if none are named.
        self.wait: tuple[str, tuple[int, ...]] = _NOTHING
        # Both raise the alarm, if there is one: where the process is about to wait for others, and if it is the cause
        # of an error of a computation of all processes.
        self.check: Callable[[], None] = _accept
        self.explain: Callable[[BaseException], None] = _accept
        self.monitor: ProgramMonitor | None = None

    def turn(self, phase: str) -> float:
        """Begins a phase; returns when."""
        time_now = monotonic()
        running = clock.running
        if running is not None:
            running.turn(class_of(phase), time_now)
        self.at = (phase, time_now)
        return time_now

    def go_on(self, phase: str, program: str) -> None:
        """Goes back to a phase while the devices compute a program that they have just been given."""
        time_now = monotonic()
        running = clock.running
        if running is not None:
            running.sent(program, self.computes, class_of(phase), time_now)
        self.at = (phase, time_now)

    def computes(self) -> bool:
        """Returns whether the last program is still running: its devices compute, or wait for others' devices."""
        return self.result is not None and is_computed(self.result())

    def wait_for_others(self) -> tuple[float, str, tuple[int, ...]] | None:
        """Returns since when this process waits for the others, at what and for whom; None if it does not wait."""
        at = self.wait  # Set before its phase begins, and reset after it ends.
        phase, since = self.at
        computes = self.computes()
        if phase in WAITING_PHASES:  # Not since the last program, which may have been long ago.
            what = at if phase == WAIT else _NOTHING
            return (since if computes else max(since, self.seen_computing), *what)
        if computes:
            return (self.called, *_NOTHING)
        # It is unknown which of these threads it waits for.
        waits = [each for each in list(self.exchanging.values()) if phase in each.phases]
        if not waits:
            return None
        last = max(waits, key=lambda each: each.began)
        return (max(since, last.began), *last.at)


now = Activity()


class exchange:
    """A context manager for any thread: in its block the thread waits for data of the other processes."""

    __slots__ = ("_at", "_phase", "_phases")

    def __init__(self, what: str = "data", processes: Sequence[int] = (), phases: frozenset[str] = _OF_INPUT):
        # `phases` are those in which the thread that trains waits for this one: then that one waits for the others too.
        self._at, self._phases = (what, tuple(processes)), phases
        self._phase: phase | None = None

    def __enter__(self) -> None:
        if get_ident() == now.thread:
            self._phase = phase(WAIT, *self._at).__enter__()
        else:
            now.exchanging[get_ident()] = _ThreadWait(monotonic(), self._at, self._phases)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        now.exchanging.pop(get_ident(), None)
        if self._phase is not None:
            self._phase.__exit__(kind, error, traceback)


class phase:
    """A context manager, or a decorator: in its block the process is in a phase, and after it in the previous one.

    It can be entered again, also inside of itself.

    Example:
        >>> with phase("input"):
        ...     now.at[0]
        'input'
    """

    __slots__ = ("_before", "_name", "_wait")

    def __init__(self, name: str, what: str = "", processes: Sequence[int] = ()):
        # In phase `WAIT`: what it waits for, and for which processes; by default for all others.
        self._name, self._wait = name, (what, tuple(processes))
        # By the thread that counts, and no other: the phases before, and what the process waited for in them.
        self._before: list[tuple[str, tuple[str, tuple[int, ...]]]] = []

    def __enter__(self) -> phase:
        if get_ident() == now.thread:
            self._before.append((now.at[0], now.wait))
            now.wait = self._wait  # Set before the phase, so that a reader of the phase finds what it waits for.
            now.turn(self._name)
            if self._name == CHECKPOINT and clock.running is not None:
                clock.running.enter(clock.CHECKPOINT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None and self._name == WAIT:
                now.explain(error)
        finally:
            if self._before and get_ident() == now.thread:
                before, wait = self._before.pop()
                now.turn(before)
                if self._name == CHECKPOINT and clock.running is not None:
                    clock.running.leave()
                now.wait = wait

    def __call__(self, fn: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(fn)
        def in_phase(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with self:
                return fn(*args, **kwargs)

        return in_phase
