"""An alarm in the script: the call that waits for the others raises it, so that `except` and `finally` blocks run.

The monitor is another thread. It notes the alarm here and shuts down the connections between the collectives of the
processes. The computation that waits for another worker then fails, and the thread that trains comes to `Alarm.explain`
with JAX's error, which raises the alarm instead. If it waits for nothing, its next call comes to `Alarm.check`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from replicax.cluster.patience import Patience
from replicax.compat.jax_interrupts import collective_ports, is_of_lost_collective
from replicax.compat.open_sockets import shut_down
from replicax.errors import WorkerLostError
from replicax.runtime.threads import StoppedAtEnd

_log = logging.getLogger(__name__)
#: Process 0 answers within a second, if at all, and is asked again from half a second on. The script comes within 5 s,
#: unless it is stuck in something else than a collective. Its `except` and `finally` blocks have half a minute.
PATIENCE = Patience(start=5.0, silence=1.0, end=30.0, again=0.5)
_LONGEST_PAUSE_S = 60.0  # between questions in vain to process 0; nobody waits for their answers


class Connections:
    """The connections between the processes' collectives."""

    def __init__(self, processes: int, ports: Callable[[], set[int]] = collective_ports, patience: Patience = PATIENCE):
        self._list, self._processes, self._patience = ports, processes, patience
        self._ports = set[int]()
        self._ask_at, self._pause, self._calls = 0.0, patience.again, 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def look(self, calls: int) -> None:
        """Begins to ask for the ports of the collectives, if some are unknown and it is time; does not wait."""
        # Process 0 lists the ports, and may be the one that is stopped: so it is asked before an alarm. The processes
        # listen, at a port each, from the first program on that all of them run: `calls` counts those.
        if calls and not self._calls:
            self._ask_at, self._pause = 0.0, self._patience.again
        self._calls = calls
        if len(self._ports) < self._processes and time.monotonic() >= self._ask_at:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
            self._begin()

    def shut_down(self) -> int:
        """Shuts the connections down; returns how many there were."""
        if len(self._ports) < self._processes:
            self._begin()
            if self._thread is not None:
                self._thread.join(self._patience.silence)
        return shut_down(self._ports)

    def close(self) -> None:
        """Asks no more: the script has ended, and nothing of it waits for others."""
        with self._lock:
            self._closed = True

    def _begin(self) -> None:
        self._ask_at = time.monotonic() + self._pause
        with self._lock:
            if not self._closed and (self._thread is None or not self._thread.is_alive()):
                self._thread = StoppedAtEnd("replicax-health-ports", self._ask)
                self._thread.start()

    def _ask(self) -> None:
        try:
            self._ports = self._ports | self._list()  # It may wait for process 0.
        except Exception as error:  # Process 0 is gone: what is known must do.
            _log.debug("The ports of the collectives are not known: %s", error)


class Alarm:
    """An alarm that the script raises."""

    def __init__(self, connections: Connections, wait: Callable[[], None], patience: Patience = PATIENCE):
        self._connections, self._wait, self._patience = connections, wait, patience
        self._raised: tuple[str, int, tuple[str, ...]] | None = None
        self._came, self._over = threading.Event(), threading.Event()

    @property
    def is_raised(self) -> bool:
        """Whether there is an alarm."""
        return self._raised is not None

    # The script.

    def check(self) -> None:
        """Raises the alarm, if there is one."""
        if self._raised is not None:
            self._came.set()
            raise WorkerLostError(*self._raised)

    def explain(self, error: BaseException) -> None:
        """Raises the alarm, if an error comes from a lost collective, and the monitor finds out why."""
        if isinstance(error, WorkerLostError) or not is_of_lost_collective(error):
            return
        if self._raised is None:
            self._wait()  # until the monitor has found out why the computation failed, or for a while
        try:
            self.check()
        except WorkerLostError as alarm:
            raise alarm from error

    def end(self) -> None:
        """Notes that the script has ended."""
        self._came.set()
        self._over.set()

    # The monitor.

    def ring(self, summary: str, code: int, culprits: Sequence[str]) -> None:
        """Raises the alarm: what the script waits for, fails. It does not wait for the script."""
        self._raised = (summary, code, tuple(culprits))
        _log.debug("%d connections were shut down.", self._connections.shut_down())

    def wait_for_script(self) -> None:
        """Returns when the script has ended, or does not come or end in time."""
        if self._came.wait(self._patience.start):
            self._over.wait(self._patience.end)
