"""Breaking off a wait of the main thread for a program that will not end.

A collective whose connections are shut down fails, but for one case: Gloo tells nobody whose message it has sent in
part (`Pair::signalException` in gloo/transport/tcp/pair.cc passes over those in its queue), and that thread waits until
its time is up. It is left behind then. The main thread waits in `jax.block_until_ready`, which looks for signals.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import jax


class WaitInterruptedError(RuntimeError):
    """The wait for a program was broken off."""


class WaitInterrupter:
    """Breaks off waits. It is made by the main thread; elsewhere, or without real-time signals, it does nothing."""

    def __init__(self) -> None:
        self._waits = False
        self._signal: signal.Signals | None = None
        if hasattr(signal, "SIGRTMIN") and threading.current_thread() is threading.main_thread():
            self._signal = signal.Signals(signal.SIGRTMIN)
            signal.signal(self._signal, self._handle)

    def wait(self, values: object) -> None:
        """Waits until arrays are computed, or raises `WaitInterruptedError`."""
        with self._waiting():
            jax.block_until_ready(values)

    def break_off(self) -> None:
        """Breaks off a wait of the main thread, from another thread; does nothing if it does not wait."""
        main = threading.main_thread().ident
        if self._signal is not None and main is not None and self._waits:
            signal.pthread_kill(main, self._signal)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._waits:
            self._waits = False
            raise WaitInterruptedError("The wait for a program was broken off: a worker was lost.")
