"""How the processes of a job agree where to stop when one of them is preempted.

Nothing is exchanged while nothing happens. In each process a thread waits for a preemption of any process; a program
checks, at the same points in every process, a flag of its own. When a process is preempted, each process's thread tells
which check its program has passed last, and lets it pass no further one before all have told. All stop at the first
check after the last that any of them has passed: every one comes to it, as the steps before it need nothing that
another process has not started yet.

Where they vote depends on the group (`contracts.group.Ballot`): in JAX's coordination service, round by round; in an
elastic job, of which a preempted worker leaves alone, in the job store, once, when all are to end.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import replicax.runtime.activity as activity
from replicax.cluster.exchange import ClosedError
from replicax.cluster.patience import Patience
from replicax.contracts.group import Ballot, current_group
from replicax.errors import CheckpointError
from replicax.runtime.threads import StoppedAtEnd

#: `start`: until a vote is called for, after which a thread looks again whether it is to end, and between two questions
#: to `is_preempted`. `silence`: for the votes of the others.
PATIENCE = Patience(start=1.0, silence=60.0, end=0.0, again=0.1)


class StopVote:
    """Tells when to stop; all processes make one together, and check it at the same points of their programs."""

    def __init__(
        self,
        is_preempted: Callable[[], bool] | None = None,
        ballot: Callable[[Patience, threading.Event], Ballot | None] | None = None,
        patience: Patience = PATIENCE,
    ):
        self.preempted_at: float | None = None  # when this process was preempted (`time.monotonic`)
        self._patience = patience
        self._lock = threading.Lock()
        self._closed, self._agreed = threading.Event(), threading.Event()
        self._ballot = (ballot or current_group().ballot)(patience, self._closed)
        # A plain flag: the signal handler runs between any two steps of the main thread, which may hold a lock.
        self._preempted = False
        self._round, self._checks, self._passed = 0, 0, -1
        self._halted = False
        self._last_passed = 0
        self._failure: Exception | None = None
        self._threads = [StoppedAtEnd("replicax-preemption", self._announce, stop=self._closed.set)]
        if is_preempted is not None:
            # A thread of its own: a user's function may hang, and SIGTERM is passed on all the same.
            self._threads.append(StoppedAtEnd("replicax-watcher", self._ask, is_preempted, stop=self._closed.set))
        if self._ballot is not None:
            self._threads.append(StoppedAtEnd("replicax-stop-vote", self._vote, self._ballot, stop=self._closed.set))
        for thread in self._threads:
            thread.start()

    @property
    def is_final(self) -> bool:
        """Whether all end when they have stopped once."""
        return self._ballot is not None and self._ballot.is_final

    def preempt(self) -> None:
        """Says that this process is preempted. It takes no lock, so a signal handler may call it."""
        if self.preempted_at is None:
            self.preempted_at = time.monotonic()
        self._preempted = True

    def check(self) -> bool:
        """Returns whether to stop here: the same in all processes."""
        if self._ballot is None:
            return self._preempted
        with self._lock:
            here, self._checks = self._ballot.position(self._checks), self._checks + 1
            if not self._halted:
                self._passed = here
                return False
        with activity.phase(activity.WAIT, "agreeing where to stop"):  # It explains what the thread failed of.
            seconds = self._patience.silence + 2 * self._patience.start  # The thread has the time limit.
            if not self._agreed.wait(seconds):
                raise CheckpointError(f"The workers could not agree where to stop within {seconds:g} s.")
            if self._failure is not None:
                raise CheckpointError(f"The workers could not agree where to stop: {self._failure}") from self._failure
        return here > self._last_passed

    def renew(self) -> None:
        """Forgets the preemption that all have stopped for, so that another one can follow."""
        self._preempted = False
        with self._lock:
            self._halted = False
            self._agreed.clear()
            self._round += 1  # Last: for the threads it is the sign that the rest has been done.

    def close(self) -> None:
        """Ends the threads. May be called twice."""
        for thread in self._threads:
            thread.stop()

    # Threads.

    def _ask(self, is_preempted: Callable[[], bool]) -> None:
        """Asks a user's function until this process is preempted: for good, so that it is asked no more."""
        while self.preempted_at is None and not self._closed.wait(self._patience.start):
            if is_preempted():
                self.preempt()

    def _announce(self) -> None:
        """Calls for a vote when this process is preempted."""
        announced = -1
        while not self._closed.wait(self._patience.again):
            round_ = self._round
            if self._preempted and announced != round_ and self._ballot is not None:
                self._ballot.call(round_)
                announced = round_

    def _vote(self, ballot: Ballot) -> None:
        """Waits until a vote is called for, tells how far this process is, and hears how far the others are."""
        try:
            for round_ in itertools.count():
                while not ballot.is_called(round_):
                    if self._closed.is_set():
                        return
                with self._lock:
                    self._halted = True
                    ballot.cast(round_, self._passed)
                self._last_passed = ballot.result(round_)
                self._agreed.set()
                while self._round == round_:
                    if self._closed.wait(self._patience.again):
                        return
        except ClosedError:
            return
        except Exception as error:
            self._failure = error
            with self._lock:
                self._halted = True
            self._agreed.set()
