"""How the workers of an elastic job agree where to stop: one of them leaves alone, or all stop after the same call.

A worker that is preempted leaves, and the others go on; nothing is agreed on then. If all of them are to end, which the
job store of their meeting says, each tells after how many calls its program has last passed a check, and passes no
further one before all have told. All stop at the first check after more calls than any of them has told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import jax

import replicax.runtime.activity as activity
from replicax.contracts.worlds import Worlds
from replicax.errors import CheckpointError, MeetingError
from replicax.group.membership.preemption import Preemption
from replicax.runtime.threads import StoppedAtEnd

_WAIT_S = 1.0
_LOOK_S = 0.1


class ElasticStop:
    """Tells when to stop, like `StopAgreement`; all workers make one, and check it at the same points of programs."""

    def __init__(
        self,
        worlds: Worlds,
        preemption: Preemption,
        is_preempted: Callable[[], bool] | None = None,
        timeout_s: float = 60.0,
    ):
        self.preempted_at: float | None = None  # when this process was preempted (`time.monotonic`)
        self._worlds, self._preemption = worlds, preemption
        self._is_preempted, self._timeout_s = is_preempted, timeout_s
        self._lock = threading.Lock()
        self._closed, self._agreed = threading.Event(), threading.Event()
        self._passed, self._halted = -1, False
        self._stop_after = 0
        self._failure: Exception | None = None
        preemption.saves, preemption.end = True, lambda: None  # The thread below sees that all are to end.
        self._thread = StoppedAtEnd("replicax-elastic-stop", self._follow, stop=self._closed.set)
        self._thread.start()

    def preempt(self) -> None:
        """Says that this process is preempted. It takes no lock, so a signal handler may call it."""
        if self.preempted_at is None:
            self.preempted_at = time.monotonic()
            self._preemption.notice("preempted")

    def check(self) -> bool:
        """Returns whether to stop here: the same in all processes."""
        with self._lock:
            if not self._halted:
                self._passed = self._worlds.calls
                return False
        with activity.phase(activity.WAIT, "agreeing where to stop"):
            agreed = self._agreed.wait(self._timeout_s + 2 * _WAIT_S)
        if not agreed or self._failure is not None:
            raise CheckpointError(f"The workers could not agree where to stop: {self._failure}") from self._failure
        return self._worlds.calls > self._stop_after

    def renew(self) -> None:
        """Does nothing: a job ends once."""

    def close(self) -> None:
        """Ends the thread. May be called twice."""
        self._thread.stop()

    def _follow(self) -> None:
        """Waits until all are to end, tells how far this process is, and hears how far the others are."""
        job_store, asked = self._preemption.job_store, False
        try:
            while not job_store.is_ending(_WAIT_S):
                if self._closed.is_set():
                    return
                if not asked and self._is_preempted is not None and self._is_preempted():
                    asked = True
                    self.preempt()
            with self._lock:
                self._halted = True
                job_store.tell_passed(self._worlds.incarnation, self._passed)
            self._stop_after = self._heard()
        except (MeetingError, CheckpointError, jax.errors.JaxRuntimeError) as error:
            self._failure = error
            with self._lock:
                self._halted = True
        self._agreed.set()

    def _heard(self) -> int:
        """Returns the largest number of calls that a member has told; those that are lost meanwhile do not count."""
        job_store, deadline = self._preemption.job_store, time.monotonic() + self._timeout_s
        while True:
            passed, gone = job_store.passed(), job_store.gone()
            members = [incarnation for incarnation in self._worlds.incarnations if incarnation not in gone]
            missing = [f"worker {incarnation.index}" for incarnation in members if incarnation not in passed]
            if not missing:
                return max(passed[incarnation] for incarnation in members)
            if time.monotonic() >= deadline or self._closed.is_set():
                raise CheckpointError(f"after {self._timeout_s:g} s nothing was heard of {', '.join(missing)}")
            time.sleep(_LOOK_S)
