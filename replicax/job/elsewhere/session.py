"""Calls of functions on all workers of a client, and what comes back: results, errors, Ctrl-C."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from replicax.cluster.patience import Patience
from replicax.errors import ClusterError, RemoteWorkerError
from replicax.job.elsewhere.remote_process import RemoteProcess
from replicax.job.elsewhere.worker_actors import PATIENCE as AGENT_PATIENCE, SERVER_LOST, Job, WorkerGroup
from replicax.job.processes.call import Call, Returned, error_from, payload_of, result_of
from replicax.job.processes.events import Event, Events, TaskRun
from replicax.job.processes.outlets import outlets_to
from replicax.job.processes.output import NoLog, shortened
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.failure import Failure
from replicax.job.supervision.run_job import JobPolicy, Tasks, run_job, signals_as
from replicax.job.supervision.state import PATIENCE, Grace
from replicax.ray_cluster.workers import WorkerCluster

ENDED_EARLY = (
    "its process ended with exit code 0 before the function returned, by sys.exit or os._exit for example. A function "
    "ends by `return`"
)


class Session:
    """A client's use of a cluster: it has the workers until it is closed, or this process ends in any way."""

    def __init__(
        self,
        cluster: WorkerCluster,
        *,
        start_timeout: float = 120.0,
        grace: Grace = Grace(),  # noqa: B008  # It does not change.
        environment: Mapping[str, str] | None = None,
        devices: int | None = None,
        agent_patience: Patience = AGENT_PATIENCE,
        patience: Patience = PATIENCE,
    ):
        self.group = WorkerGroup(cluster, agent_patience._replace(start=start_timeout))
        self._grace, self._environment, self._devices = grace, dict(environment or {}), devices
        self._patience = patience
        self._turn = threading.Lock()
        self._is_open = True
        self._lost: RemoteWorkerError | None = None

    def call(self, call: Call, everyone: bool = False) -> tuple[object, ...]:
        """Calls a function on all workers, in fresh processes; returns their results in order, or the chief's alone."""
        payload = payload_of(call)  # A strategy in it becomes the worker's own.
        if not self._turn.acquire(blocking=False):
            raise ClusterError("The cluster", None, "is at work for another call", "Make one call after the other.")
        try:
            self._check_open()
            return self._run(payload, everyone)
        except RemoteWorkerError as error:
            if error.how == SERVER_LOST:
                self._lose(error)
            raise
        finally:
            self._turn.release()

    def _run(self, payload: bytes, everyone: bool) -> tuple[object, ...]:
        terminal, events = Terminal(sys.stdout, sys.stderr), Events[Event]()
        job = Job(
            payload=payload,
            environment=self._environment,
            devices=self._devices,
            wanted=lambda number: everyone or number == 0,
        )
        started: list[RemoteProcess] = []
        outlets = functools.partial(outlets_to, terminal, NoLog())

        @contextlib.contextmanager
        def start(workers: int, attempt: int) -> Iterator[Tasks]:
            del workers  # The group knows them.

            def processes() -> Iterator[RemoteProcess]:
                for process in self.group.start(job, attempt, outlets, events):
                    started.append(process)
                    yield process

            yield Tasks(processes())

        policy = JobPolicy(len(self.group.places), self._grace, patience=self._patience)
        with signals_as(events, (signal.SIGINT,)):
            attempt, failure = run_job(start, policy, terminal, events)
        lost = next((process for process in started if process.is_lost), None)
        error = None if lost is None else RemoteWorkerError(lost.task.name, SERVER_LOST, lost.last_words)
        if attempt.interrupted:
            if error is not None:
                self._lose(error)
            raise KeyboardInterrupt
        if error is not None:  # Others fail in its wake, perhaps before it is missed.
            raise error
        if failure is not None:
            raise self._error(failure, started)
        return tuple(_value(process) for process in started)[: None if everyone else 1]

    def _error(self, failure: Failure, started: Sequence[RemoteProcess]) -> Exception:
        (process,) = (each for each in started if TaskRun.of(each.task) == failure.culprit)
        how = ENDED_EARLY if process.ended_early else failure.how
        return error_from(process.task.name, how, shortened(process.last_words), process.result)

    def _check_open(self) -> None:
        if self._lost is not None:
            how = f"{SERVER_LOST} before this call; start it again, and make a new strategy"
            raise RemoteWorkerError(self._lost.worker, how, self._lost.words)
        if not self._is_open:
            raise ClusterError("The cluster", None, "was closed", "Make a new strategy.")

    def _lose(self, error: RemoteWorkerError) -> None:
        """Notes that a server was lost, without which nothing can run here any more."""
        self._lost = error
        self.close()

    def close(self) -> None:
        """Ends the workers and gives the cluster back. A second call does nothing."""
        if self._is_open:
            self._is_open = False
            self.group.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _value(process: RemoteProcess) -> object:
    """Returns what a worker's function returned; None if its result is not wanted."""
    result = result_of(process.result)
    assert isinstance(result, Returned)  # A process that ends with 0 and without a result has failed.
    return result.value
