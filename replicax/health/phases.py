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
from collections.abc import Callable
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


class Activity:
    """What a process is doing.

    Attributes:
        at: The phase and when it began (`time.monotonic`).
        calls: How many programs of all processes together it has begun to run: the number of its step.
        called: When the last of these was begun.
        program: The name of that program.
        fingerprint: Its fingerprint, if the processes have compared it.
        result: A weak reference to an array that it computes, None if that is not known.
        exchanging: For each thread that waits for the others' data, since when.
        seen_computing: When it was last seen that the devices compute.
        thread: The thread that counts.
    """

    __slots__ = ("at", "called", "calls", "exchanging", "fingerprint", "program", "result", "seen_computing", "thread")

    def __init__(self) -> None:
        self.at: tuple[str, float] = (IDLE, monotonic())
        self.calls = 0
        self.called = self.seen_computing = 0.0
        self.program = self.fingerprint = ""
        self.exchanging: dict[int, float] = {}
        self.result: weakref.ref[Any] | None = None
        self.thread = threading.main_thread().ident

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
        if phase in WAITING_PHASES:  # Not since the last program, which may be long ago, or none has run yet.
            return since
        if self.computes():
            return self.called
        if phase not in (INPUT, FIRST_BATCH):
            return None
        exchanging = list(self.exchanging.values())  # Which of these threads it waits for is not known.
        return max(since, *exchanging) if exchanging else None


now = Activity()


class exchange:
    """A context manager for any thread: until the end of the block it waits for what the other processes send.

    If the thread that trains waits for input meanwhile, it is the others for whom it waits.
    """

    def __enter__(self) -> None:
        now.exchanging[get_ident()] = monotonic()

    def __exit__(self, *exception: object) -> None:
        now.exchanging.pop(get_ident(), None)


class phase:
    """A context manager: the process is in a phase until the end of the block, and then in the one before.

    As a decorator it does the same for each call of a function.

    Example:
        >>> with phase("input"):
        ...     now.at[0]
        'input'
    """

    __slots__ = ("_before", "_name")

    def __init__(self, name: str):
        self._name = name
        self._before: str | None = None

    def __enter__(self) -> phase:
        if get_ident() == now.thread:
            self._before = now.at[0]
            now.at = (self._name, monotonic())
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            now.at = (self._before, monotonic())

    def __call__(self, fn: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(fn)
        def in_phase(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with phase(self._name):
                return fn(*args, **kwargs)

        return in_phase
