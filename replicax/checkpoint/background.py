"""The threads that write checkpoints in the background, by directory.

A save is found here even when its manager is gone, because an error has ended the code that made it. When the script
ends, what is still being written is finished (`replicax.runtime.ending`), and a failure that nobody has seen is raised.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import replicax.runtime.activity as activity
from replicax.checkpoint.places import Place
from replicax.errors import WorkerLostError
from replicax.runtime.ending import finish_at_end, finished
from replicax.values.tracebacks import entry_point

_log = logging.getLogger(__name__)

_running: dict[Place, BackgroundSave] = {}


class BackgroundSave:
    """A thread that writes a checkpoint to a directory."""

    def __init__(self, directory: Place, write: Callable[[], object]):
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        _running[directory] = self
        finish_at_end(self, self.wait)
        threading.Thread(target=self._run, args=(write,), name="replicax-checkpoint").start()

    @activity.phase(activity.CHECKPOINT)
    def join(self) -> None:
        """Returns when the thread has written the checkpoint, or failed to."""
        self._ended.wait()

    @entry_point
    def wait(self) -> None:
        """Returns when the checkpoint is written. A failure is raised once."""
        self.join()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raises the failure of a save that has failed by now, if it has not been raised before."""
        failure, self._failure = self._failure, None
        if failure is not None:
            finished(self)
            raise failure

    def _run(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BaseException as error:
            self._failure = error
            if not isinstance(error, WorkerLostError):  # That has been told.
                _log.error("%s", error)  # At once: the script's next save, which raises it, may be hours away.
        else:
            finished(self)
        finally:
            self._ended.set()


def wait_for(directory: Place) -> None:
    """Returns when no thread writes to a directory any more."""
    save = _running.get(directory)
    if save is not None:
        save.join()  # Another thread may wait for it, too.
        if _running.get(directory) is save:
            del _running[directory]
