"""How the processes of a job agree where to stop when one of them is told to go.

Nothing is exchanged while nothing happens. In each process a thread waits for the notice of the others; a program
checks, at the same points in every process, a flag of its own. When the notice comes, each process's thread says how
many checks its program has passed, and lets it pass no other one before all have said so. The largest of these numbers
is that of the check at which all stop: no process has passed it, and every one comes to it, as the steps before it
need nothing that another process has not started yet.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import jax

import replicax.health as health
from replicax.compat.jax_processes import publish, published
from replicax.errors import CheckpointError

_PREFIX = "replicax/preemption"
_POLL_S = 1.0
_LOOK_S = 0.1
_numbers = itertools.count()


class Notice:
    """Tells when to stop; all processes make it together, and check it at the same points of their programs.

    Args:
        watch: Asked every second whether this process is to go; None if only `give` says so.
        timeout_s: How long to wait for the other processes when a notice has come, in seconds.

    Attributes:
        given_at: When this process was told to go (`time.monotonic`), or None if it was another one or none.
    """

    def __init__(self, watch: Callable[[], bool] | None = None, timeout_s: float = 60.0):
        self._key = f"{_PREFIX}/{next(_numbers)}"
        self._process, self._count = jax.process_index(), jax.process_count()
        self._watch, self._timeout_s = watch, timeout_s
        self._lock = threading.Lock()
        self._closed, self._agreed = threading.Event(), threading.Event()
        # A plain flag: the signal handler runs in between any two steps of the main thread, which may hold a lock.
        self._given = False
        self._round, self._passed = 0, 0
        self._halted = False
        self._stop_at = 0
        self._failure: Exception | None = None
        self.given_at: float | None = None
        self._threads = [threading.Thread(target=self._lead, name="replicax-notice", daemon=True)]
        if self._count > 1:
            self._threads.append(threading.Thread(target=self._follow, name="replicax-notice-wait", daemon=True))
        for thread in self._threads:
            thread.start()

    def give(self) -> None:
        """Says that this process is to go. It takes no lock, so a signal handler may call it."""
        if self.given_at is None:
            self.given_at = time.monotonic()
        self._given = True

    def check(self) -> bool:
        """Returns whether to stop here: the same in all processes.

        Raises:
            CheckpointError: A notice has come, and some process did not say how far it is.
        """
        if self._count == 1:
            return self._given
        with self._lock:
            if not self._halted:
                self._passed += 1
                return False
        with health.phase(health.WAIT, "agreeing where to stop"):
            agreed = self._agreed.wait(self._timeout_s + 2 * _POLL_S)
        if not agreed or self._failure is not None:
            raise CheckpointError(f"The workers could not agree where to stop: {self._failure}") from self._failure
        here, self._passed = self._passed, self._passed + 1
        return here >= self._stop_at

    def renew(self) -> None:
        """Forgets the notice that all have stopped for, so that another one can come."""
        self._given = False
        with self._lock:
            self._halted = False
            self._agreed.clear()
            self._round += 1  # last: the threads take it for a sign that the rest has been done

    def close(self) -> None:
        """Ends the threads. May be called twice."""
        self._closed.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    # Threads.

    def _lead(self) -> None:
        """Tells the others when this process is told to go."""
        told, asked = -1, time.monotonic()
        while not self._closed.wait(_LOOK_S):
            round_ = self._round
            if self._watch is not None and not self._given and time.monotonic() - asked >= _POLL_S:
                asked = time.monotonic()
                if self._watch():
                    self.give()
            if self._given and told != round_ and self._count > 1:
                publish(f"{self._key}/{round_}/notice", str(self._process))
                told = round_

    def _follow(self) -> None:
        """Waits for a notice of any process, says how far this one is, and hears how far the others are."""
        try:
            for round_ in itertools.count():
                while published(f"{self._key}/{round_}/notice", int(_POLL_S * 1000)) is None:
                    if self._closed.is_set():
                        return
                self._agree(round_)
                while self._round == round_:
                    if self._closed.wait(_LOOK_S):
                        return
        except Exception as error:
            self._failure = error
            with self._lock:
                self._halted = True
            self._agreed.set()

    def _agree(self, round_: int) -> None:
        with self._lock:
            self._halted = True
            publish(f"{self._key}/{round_}/passed/{self._process}", str(self._passed))
        deadline = time.monotonic() + self._timeout_s
        passed: dict[int, int] = {}
        while len(passed) < self._count and not self._closed.is_set():
            missing = [process for process in range(self._count) if process not in passed]
            said = published(f"{self._key}/{round_}/passed/{missing[0]}", int(_POLL_S * 1000))
            if said is not None:
                passed[missing[0]] = int(said)
            elif time.monotonic() > deadline:
                absent = ", ".join(f"process {process}" for process in missing)
                raise CheckpointError(f"after {self._timeout_s:g} s nothing was heard of {absent}")
        self._stop_at = max(passed.values(), default=0)
        self._agreed.set()
