"""What this process is doing now: a few flags that the training loop sets and the monitor's thread reads.

The flags are one object of the module, `now`. It is, beside the monitor itself, the only such state of the floor. It
must be: a process does one thing at a time, the flags are set in every step of every loop whether or not anybody
watches, and the reader is another thread, which context variables would not reach. So setting a phase is one
assignment of a tuple, which readers see whole or not at all.

Only one thread counts, the one that trains; what prefetch threads and the like do is not what the process waits for.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from time import monotonic
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

START = "start"  # Nothing has been computed together yet: imports, building the model, reading the first files.
INPUT = "input"  # Waiting for the next batch.
FIRST_BATCH = "first batch"  # The same for the first one, which may have to open files and fill buffers.
COMPILE = "compile"  # Tracing and compiling.
STEP = "step"  # In a compiled program that all processes run together.
WAIT = "wait"  # Waiting for the other processes, outside of a program.
CALLBACK = "callback"
CHECKPOINT = "checkpoint"
IDLE = "idle"  # Elsewhere in the user's code.
LEAVE = "leave"  # The script has ended, and waits for those of the others: JAX lets nobody go before all have come.

#: The phases in which a process can be slow without being stuck.
SLOW_PHASES = frozenset({START, FIRST_BATCH, COMPILE, CHECKPOINT})
#: The phases in which a process waits for the others.
WAITING_PHASES = frozenset({STEP, WAIT})


_NOTHING: tuple[str, tuple[int, ...]] = ("", ())


class Activity:
    """What a process is doing.

    Attributes:
        at: The phase and when it began (`time.monotonic`).
        calls: How many programs of all processes together it has begun to run: the number of its step.
        called: When the last of these was begun.
        moved: When bytes were last seen to move between this process and others, while it waited.
        program: The name of that program.
        fingerprint: Its fingerprint, if the processes have compared it.
        result: A weak reference to an array that it computes, None if that is not known.
        exchanging: For each thread that waits for the others' data, since when.
        seen_computing: When it was last seen that the devices compute.
        thread: The thread that counts.
        wait: What it waits for in phase `WAIT`, and for which processes; for all others if none are named.
    """

    __slots__ = (
        "at",
        "called",
        "calls",
        "exchanging",
        "fingerprint",
        "moved",
        "program",
        "result",
        "seen_computing",
        "thread",
        "wait",
    )

    def __init__(self) -> None:
        self.at: tuple[str, float] = (IDLE, monotonic())
        self.calls = 0
        self.called = self.seen_computing = self.moved = 0.0
        self.program = self.fingerprint = ""
        self.exchanging: dict[int, float] = {}
        self.result: weakref.ref[Any] | None = None
        self.thread = threading.main_thread().ident
        self.wait: tuple[str, tuple[int, ...]] = _NOTHING

    def computes(self) -> bool:
        """Returns whether the last program has not finished yet: devices compute, or wait for those of others."""
        array = self.result() if self.result is not None else None
        try:
            return array is not None and not array.is_ready()
        except Exception:  # It has been given away to the next program, or is no array of a device.
            return False

    def waits_since(self) -> float | None:
        """Returns since when this process has been waiting for the others; None if it does not."""
        phase, since = self.at
        computes = self.computes()
        if phase in WAITING_PHASES:  # Not since the last program, which may be long ago, or none has run yet.
            return since if computes else max(since, self.seen_computing)
        if computes:
            return self.called
        if phase not in (INPUT, FIRST_BATCH):
            return None
        exchanging = list(self.exchanging.values())  # Which of these threads it waits for is not known.
        return max(since, *exchanging) if exchanging else None


now = Activity()


class exchange:
    """A context manager for any thread: until the end of the block it waits for what the other processes send.

    In the thread that trains this is phase `WAIT`. In another one it counts while the thread that trains waits for
    input: then it is the others for whom it waits.

    Args:
        what: What it waits for.
    """

    __slots__ = ("_phase", "_what")

    def __init__(self, what: str = "data"):
        self._what = what
        self._phase: phase | None = None

    def __enter__(self) -> None:
        if get_ident() == now.thread:
            self._phase = phase(WAIT, self._what).__enter__()
        else:
            now.exchanging[get_ident()] = monotonic()

    def __exit__(self, *exception: object) -> None:
        if self._phase is not None:
            self._phase.__exit__()
        now.exchanging.pop(get_ident(), None)


class phase:
    """A context manager: the process is in a phase until the end of the block, and then in the one before.

    As a decorator it does the same for each call of a function.

    Args:
        name: The phase.
        what: In phase `WAIT`: what it waits for.
        processes: For which processes; all others by default.

    Example:
        >>> with phase("input"):
        ...     now.at[0]
        'input'
    """

    __slots__ = ("_before", "_name", "_wait", "_wait_before")

    def __init__(self, name: str, what: str = "", processes: Sequence[int] = ()):
        self._name, self._wait = name, (what, tuple(processes))
        self._before: str | None = None
        self._wait_before = _NOTHING

    def __enter__(self) -> phase:
        if get_ident() == now.thread:
            self._before, self._wait_before = now.at[0], now.wait
            now.wait = self._wait  # before the phase: who reads it after the phase knows for whom that waits
            now.at = (self._name, monotonic())
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            now.at = (self._before, monotonic())
            now.wait = self._wait_before

    def __call__(self, fn: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(fn)
        def in_phase(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with phase(self._name, *self._wait):
                return fn(*args, **kwargs)

        return in_phase
