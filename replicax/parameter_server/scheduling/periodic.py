"""Doing something again and again beside the program, until told to stop."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from replicax.runtime.threads import StoppedAtEnd

_log = logging.getLogger(__name__)
_JOIN_S = 10.0  # for a call that has begun: it draws, or writes to a disk


class Periodic(contextlib.AbstractContextManager[None]):
    """Calls a function in a thread at intervals while a `with` block runs, and once at its end; stops if it fails."""

    def __init__(self, task: Callable[[], None], every_s: float, name: str):
        self._task, self._every_s, self._name = task, every_s, name
        self._end = threading.Event()
        self._thread = StoppedAtEnd(name, self._run, stop=self._end.set)

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            if not self._call():
                return

    def _call(self) -> bool:
        try:
            self._task()
        except Exception:
            _log.warning("%s has failed, and goes on no more.", self._name, exc_info=True)
            self._end.set()
            return False
        return True

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        if not self._end.is_set():
            self._end.set()
            self._thread.join(_JOIN_S)
            self._call()
        else:
            self._thread.join(_JOIN_S)
