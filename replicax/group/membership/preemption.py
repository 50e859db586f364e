"""SIGTERM in a worker of an elastic job: that worker leaves, and the others go on; or the whole job is to end.

A scheduler that takes a machine away, and somebody who ends the job, send the same signal. The launcher tells on the
job store when it ends all workers. So a worker that gets the signal looks there, in a thread: a signal handler must
not.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Protocol

import jax

from replicax.cluster.exchange import ClosedError
from replicax.cluster.patience import Patience
from replicax.contracts.group import Incarnation
from replicax.errors import CheckpointError, MeetingError
from replicax.group.membership.job_store import JobStore
from replicax.runtime.threads import StoppedAtEnd

# The launcher writes into the store that all are to end before it sends signals; the signals may be faster.
PATIENCE = Patience(start=0.5, silence=0.5, end=0.5, again=0.1)
_AT_ONCE_S = 0.05  # to read what is there

_UNHANDLED = (signal.SIG_DFL, None)  # None: a handler that Python did not install, such as JAX's own


def watch_sigterm(preemption: Preemption) -> None:
    """Lets SIGTERM be a notice, unless the script handles it already. A second one ends the process at once."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) in _UNHANDLED:
        preemption.end = _end_by_signal

        def handle(number: int, frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)
            preemption.notice("preempted: SIGTERM")

        signal.signal(signal.SIGTERM, handle)


def _end_by_signal() -> None:
    os.kill(os.getpid(), signal.SIGTERM)  # Its handler has put the default back.


class MemberLike(Protocol):
    """This worker as its preemption sees it; `elastic_group.ElasticGroup` is one."""

    @property
    def calls(self) -> int:
        """How many calls have been completed: in all members the same at the same point of the script."""

    @property
    def incarnation(self) -> Incarnation:
        """This run of this process."""

    @property
    def incarnations(self) -> tuple[Incarnation, ...]:
        """The present members."""

    @property
    def may_leave(self) -> bool:
        """Whether enough others go on if this process leaves."""

    def leave_soon(self, reason: str) -> None:
        """Lets this process leave between two calls, and end."""


class Preemption:
    """Decides what a notice means: this worker leaves, or all of them end."""

    def __init__(self, job_store: JobStore, member: MemberLike, patience: Patience = PATIENCE):
        # The connection with the job store is one of its own. `saves`: all workers save at the same point before they
        # end. Then they all do so if this one must go and too few would be left.
        self.job_store, self.saves = job_store, False
        self.end: Callable[[], object] = lambda: None  # what is to be done here if all workers end
        self._member, self._patience = member, patience
        self._notices: SimpleQueue[str] = SimpleQueue()  # Unlike a Queue it may be used in a signal handler.
        self._thread = StoppedAtEnd("replicax-preemption-notice", self._run, stop=lambda: self._notices.put(""))
        self._thread.start()

    def notice(self, reason: str) -> None:
        """Tells that this worker is to end. For signal handlers, too."""
        self._notices.put(reason)

    def stop(self) -> None:
        """Ends the thread."""
        self._thread.stop()

    def _run(self) -> None:
        while reason := self._notices.get():
            try:
                self._take(reason)
            except (MeetingError, jax.errors.JaxRuntimeError):  # The job store is gone, and with it the launcher.
                self.end()

    def _take(self, reason: str) -> None:
        deadline = time.monotonic() + self._patience.silence
        while not self.job_store.is_ending(_AT_ONCE_S):
            if time.monotonic() >= deadline:
                self._leave(reason)
                return
            time.sleep(self._patience.again)
        self.end()

    def _leave(self, reason: str) -> None:
        if self.saves and not self._member.may_leave:
            self.job_store.tell_ending()
        else:
            self._member.leave_soon(reason)


class JobBallot:
    """A ballot in the job store, for the one vote when all are to end; see `contracts.group.Ballot`.

    A worker that is preempted leaves, and the others go on: then nothing is voted on.
    """

    is_final = True

    def __init__(self, preemption: Preemption, member: MemberLike, patience: Patience, closed: threading.Event):
        self._preemption, self._job_store, self._member = preemption, preemption.job_store, member
        self._patience, self._closed = patience, closed
        preemption.saves, preemption.end = True, lambda: None  # Whoever waits in `is_called` sees that all are to end.

    def position(self, checks: int) -> int:
        """Returns the number of calls: one that has come later has made fewer checks."""
        del checks
        return self._member.calls

    def call(self, round_: int) -> None:
        self._preemption.notice("preempted")

    def is_called(self, round_: int) -> bool:
        return self._job_store.is_ending(self._patience.start)

    def cast(self, round_: int, passed: int) -> None:
        self._job_store.tell_passed(self._member.incarnation, passed)

    def result(self, round_: int) -> int:
        """Returns the largest vote of the members; those that are lost meanwhile do not count."""
        deadline = time.monotonic() + self._patience.silence
        while True:
            passed, gone = self._job_store.passed(), self._job_store.gone()
            members = [incarnation for incarnation in self._member.incarnations if incarnation not in gone]
            missing = [f"worker {incarnation.index}" for incarnation in members if incarnation not in passed]
            if not missing:
                return max(passed[incarnation] for incarnation in members)
            if time.monotonic() >= deadline:
                raise CheckpointError(f"after {self._patience.silence:g} s nothing was heard of {', '.join(missing)}")
            if self._closed.wait(self._patience.again):
                raise ClosedError
