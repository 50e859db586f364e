"""The faults of `elastic.py`: which, on whom, and at which moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from replicax.errors import ArgumentError, WorkersFailedError
from replicax.testing import ElasticJob
from replicax.testing.elastic_job import Run
from tests.soak.elastic_history import Fault, Line, read_last
from tests.soak.elastic_hosts import Servers

WORKERS, FEWEST = 4, 2
STALL_S = 7.0
LONGEST_WAIT_S = 120.0  # for the job to have all its members again: then it is a hang
_MOMENTS = ("steady", "two", "two", "recovery", "join")
_WEIGHTS = {"kill": 8, "preempt": 4, "stop": 4, "cut": 4, "node": 4}
_LONGEST_STEADY_S, _LONGEST_RECOVERY_S, _LONGEST_JOIN_S = 0.5, 1.5, 6.0
_LOOK_S = 0.05
_SECONDS_FOR_STACKS = 2.0


class Striker:
    """Strikes a job.

    Args:
        job: The job.
        folder: Where its workers tell of their steps.
        chance: Draws everything.
        kinds: The kinds of faults that this machine allows.
        servers: Where the workers run; None if they are processes of the launcher.

    Attributes:
        faults: Those that have struck.
        hangs: How often the job has not come back in time.
        survived: After how many faults it has.
    """

    def __init__(
        self,
        job: ElasticJob,
        folder: Path,
        chance: random.Random,
        kinds: tuple[str, ...],
        servers: Servers | None = None,
    ):
        self.faults: list[Fault] = []
        self.hangs = self.survived = 0
        self._job, self._folder, self._chance, self._kinds = job, folder, chance, kinds
        self._servers = servers
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._open: list[Fault] = []  # faults after which the job has not yet had all its members

    def strike_at_start(self) -> None:
        """Kills a worker while all are starting."""
        self._until(lambda: len(self._job.membership.running) == WORKERS, "a start of all workers")
        self._pause(self._chance.uniform(0.0, 8.0))
        self._strike(1, "start", ("kill",))
        self.await_all()

    def strike(self, most: int) -> None:
        """Strikes once more, at most `most` workers, and waits until all is well, unless the next one comes earlier."""
        moment = self._chance.choice(_MOMENTS)
        if moment == "two" and most > 1:
            self.await_all()
            self._pause(self._chance.uniform(0.0, _LONGEST_STEADY_S))
            self._strike(2, "two", self._kinds)
        elif moment in ("recovery", "join") and most > 1:
            self.await_all()
            self._strike(1, "steady", self._kinds)
            if moment == "join":
                known = len(self._job.membership.runs)
                self._until(lambda: len(self._job.membership.runs) > known, "a replacement")
            self._pause(self._chance.uniform(0.0, _LONGEST_JOIN_S if moment == "join" else _LONGEST_RECOVERY_S))
            self._strike(1, moment, self._kinds)
        else:
            self.await_all()
            self._pause(self._chance.uniform(0.0, _LONGEST_STEADY_S))
            self._strike(1, "steady", self._kinds)

    def strike_at_end(self) -> None:
        """Kills a worker in the last steps."""
        self._pause(self._chance.uniform(0.0, 2.0))
        self._strike(1, "end", ("kill",))
        self.survived += len(self._open)
        self._open = []

    def await_all(self) -> None:
        """Waits until all workers take part again, and each of them has completed a step with all others.

        Raises:
            WorkersFailedError: They do not in time.
        """
        try:
            self._until(self._all_well, f"a step of all {WORKERS} workers")
        except WorkersFailedError:
            self.hangs += 1
            for run in self._job.membership.running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(run.pid, signal.SIGABRT)
            time.sleep(_SECONDS_FOR_STACKS)
            raise
        self.survived += len(self._open)
        self._open = []

    def last_lines(self) -> dict[int, Line]:
        """Returns the last step that each worker has told of."""
        return read_last(self._folder)

    def close(self) -> None:
        """Mends what is cut and lets go on what is stopped."""
        for _, action in self._later:
            action()
        self._later = []

    def _all_well(self) -> bool:
        running = self._job.membership.running
        lines = self.last_lines()
        struck = {fault.run for fault in self._open}
        if len(running) < WORKERS or any(run in struck and not self._is_back(run) for run in running.values()):
            return False
        present = [lines.get(worker) for worker in range(WORKERS)]
        since = max((fault.time for fault in self._open), default=0.0)
        return all(
            line and line.run == running[worker] and len(line.members) == WORKERS and line.time > since
            for worker, line in enumerate(present)
        )

    def _is_back(self, run: Run) -> bool:
        """Returns whether a run that was struck takes part again: it was stopped, or cut off, for a while.

        One that was preempted goes on until it leaves.
        """
        fault = next(fault for fault in self._open if fault.run == run)
        if fault.kind not in ("stop", "cut"):
            return False
        line = self.last_lines().get(run.worker)
        return line is not None and line.run == run and line.time > fault.time + STALL_S

    def _strike(self, count: int, moment: str, kinds: tuple[str, ...]) -> None:
        """Strikes some of the workers that run, so that at least `FEWEST` others go on."""
        membership = self._job.membership
        well = set(membership.running) - {fault.run.worker for fault in self._open}
        newcomers = set(membership.running) - set(membership.present)
        chosen = self._chance.sample(sorted(well | newcomers), min(count, len(well | newcomers)))
        while chosen and moment != "start" and len((well & set(membership.present)) - set(chosen)) < FEWEST:
            chosen.pop()
        now = time.time()
        for worker in chosen:
            (kind,) = self._chance.choices(kinds, [_WEIGHTS[kind] for kind in kinds])
            try:
                kind, run = self._one(kind, worker)
            except ArgumentError:  # It has ended by itself: it was a start behind a cable that is cut.
                continue
            fault = Fault(kind, moment, run, now)
            self.faults.append(fault)
            self._open.append(fault)
            present = membership.present
            print(f"{len(self.faults)}: {kind} of worker {worker} ({moment}), members {present}", flush=True)

    def _one(self, kind: str, worker: int) -> tuple[str, Run]:
        """Strikes a worker; returns the kind, and the run. The first server is not struck, but its worker."""
        job, longer = self._job, STALL_S + self._chance.uniform(0.5, 3.0)
        if kind == "stop":
            run = job.stop(worker)
            self._in(longer, lambda: job.resume(run))
            return kind, run
        if kind == "cut":
            self._in(longer, lambda: job.mend(worker))
            return kind, job.cut(worker)
        if kind == "node" and self._servers is not None:
            servers, run = self._servers, job.run_of(worker)
            server = servers.with_worker(run.pid)
            if server:
                servers.lose(server)
                self._in(self._chance.uniform(0.0, 4.0), lambda: servers.start(server))
                return kind, run
        return ("preempt", job.preempt(worker)) if kind == "preempt" else ("kill", job.kill(worker))

    def _in(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._until(lambda: time.monotonic() > deadline, "the end of a pause")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        def found() -> bool:
            due = [each for each in self._later if each[0] <= time.monotonic()]
            for each in due:
                self._later.remove(each)
                with contextlib.suppress(ArgumentError):
                    each[1]()
            time.sleep(_LOOK_S)
            return condition()

        self._job.wait_until(found, what, LONGEST_WAIT_S)
