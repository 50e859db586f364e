"""Work that cannot be interrupted, done in a thread so that whoever waits for it can give up."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Work:
    """A call in a thread, which does not keep the process from ending.

    Args:
        call: What to do.
    """

    def __init__(self, call: Callable[[], None]):
        self._call, self._over = call, threading.Event()
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="replicax-connecting", daemon=True).start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Returns whether it is over; waits for that for so many seconds."""
        return self._over.wait(wait_s)

    def check(self) -> None:
        """Raises what the call has raised."""
        if self._error is not None:
            raise self._error
