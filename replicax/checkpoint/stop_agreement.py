"""How the processes of a job agree where to stop when one of them is preempted.

Nothing is exchanged while nothing happens. In each process a thread waits for a preemption of any process; a program
checks, at the same points in every process, a flag of its own. When a process is preempted, each process's thread tells
how many checks its program has passed, and lets it pass no further one before all have told. The largest of these
numbers is that of the check at which all stop: no process has passed it, and every one comes to it, as the steps before
it need nothing that another process has not started yet.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import jax

import replicax.runtime.activity as activity
from replicax.cluster.exchange import AbsentError, ClosedError, Exchange
from replicax.cluster.key_value_store import Store
from replicax.errors import CheckpointError
from replicax.runtime.threads import StoppedAtEnd

_POLL_S = 1.0
_LOOK_S = 0.1
_numbers = itertools.count()


class StopAgreement:
    """Tells when to stop; all processes make it together, and check it at the same points of their programs."""

    def __init__(
        self,
        is_preempted: Callable[[], bool] | None = None,
        timeout_s: float = 60.0,
        *,
        process: int | None = None,
        count: int | None = None,
        store: Store | None = None,
    ):
        self._process = jax.process_index() if process is None else process
        self._count = jax.process_count() if count is None else count
        self._is_preempted, self._timeout_s = is_preempted, timeout_s
        self._lock = threading.Lock()
        self._closed, self._agreed = threading.Event(), threading.Event()
        self._exchange = Exchange(
            f"replicax/preemption/{next(_numbers)}",
            self._process,
            range(self._count),
            store=store,
            timeout_s=timeout_s,
            closed=self._closed,
        )
        # A plain flag: the signal handler runs between any two steps of the main thread, which may hold a lock.
        self._preempted = False
        self._round, self._passed = 0, 0
        self._halted = False
        self._stop_at = 0
        self._failure: Exception | None = None
        self.preempted_at: float | None = None  # when this process was preempted (`time.monotonic`)
        self._threads = [StoppedAtEnd("replicax-preemption", self._announce, stop=self._closed.set)]
        if self._count > 1:
            self._threads.append(StoppedAtEnd("replicax-preemption-wait", self._follow, stop=self._closed.set))
        for thread in self._threads:
            thread.start()

    def preempt(self) -> None:
        """Says that this process is preempted. It takes no lock, so a signal handler may call it."""
        if self.preempted_at is None:
            self.preempted_at = time.monotonic()
        self._preempted = True

    def check(self) -> bool:
        """Returns whether to stop here: the same in all processes."""
        if self._count == 1:
            return self._preempted
        with self._lock:
            if not self._halted:
                self._passed += 1
                return False
        with activity.phase(activity.WAIT, "agreeing where to stop"):
            agreed = self._agreed.wait(self._timeout_s + 2 * _POLL_S)
        if not agreed or self._failure is not None:
            raise CheckpointError(f"The workers could not agree where to stop: {self._failure}") from self._failure
        here, self._passed = self._passed, self._passed + 1
        return here >= self._stop_at

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

    def _announce(self) -> None:
        """Tells the others when this process is preempted."""
        announced, asked = -1, time.monotonic()
        while not self._closed.wait(_LOOK_S):
            round_ = self._round
            if self._is_preempted is not None and not self._preempted and time.monotonic() - asked >= _POLL_S:
                asked = time.monotonic()
                if self._is_preempted():
                    self.preempt()
            if self._preempted and announced != round_ and self._count > 1:
                self._exchange.decide(f"{round_}/preempted", str(self._process).encode())
                announced = round_

    def _follow(self) -> None:
        """Waits until some process is preempted, tells how far this one is, and hears how far the others are."""
        try:
            for round_ in itertools.count():
                while self._exchange.decided(f"{round_}/preempted", _POLL_S) is None:
                    if self._closed.is_set():
                        return
                self._agree(round_)
                while self._round == round_:
                    if self._closed.wait(_LOOK_S):
                        return
        except ClosedError:
            return
        except Exception as error:
            self._failure = error
            with self._lock:
                self._halted = True
            self._agreed.set()

    def _agree(self, round_: int) -> None:
        stage = f"{round_}/passed"
        with self._lock:
            self._halted = True
            self._exchange.tell(stage, str(self._passed).encode())
        try:
            self._stop_at = max(int(passed) for passed in self._exchange.collect(stage))
        except AbsentError as error:
            absent = ", ".join(f"process {process}" for process in error.missing)
            raise CheckpointError(f"after {self._timeout_s:g} s nothing was heard of {absent}") from None
        self._agreed.set()
