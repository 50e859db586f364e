"""Work that cannot be interrupted. It runs in a thread, so that the caller can stop waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from replicax.runtime.threads import StoppedAtEnd


class Work:
    """A call in a thread that does not prevent the process from ending.

    Args:
        call: The call.
    """

    def __init__(self, call: Callable[[], None]):
        self._call, self._over = call, threading.Event()
        self._error: BaseException | None = None
        StoppedAtEnd("replicax-connecting", self._run).start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Returns whether it is over, after waiting for at most `wait_s` seconds."""
        return self._over.wait(wait_s)

    def check(self) -> None:
        """Raises the error of the call, if it raised one."""
        if self._error is not None:
            raise self._error
