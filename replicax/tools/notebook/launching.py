"""Runs a function of a notebook as several workers on this machine: their output, results and errors arrive here."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

from replicax.checks import checked_int, checked_seconds, explain_misfit
from replicax.cluster.signing import new_token
from replicax.errors import RemoteWorkerError
from replicax.job.elsewhere.session import ENDED_EARLY
from replicax.job.options import Options
from replicax.job.plan import HOST, Job, count_ports, flags_for_workers, make_plan
from replicax.job.processes.call import Call, Returned, error_from, payload_of, result_of
from replicax.job.processes.compile_cache import keep_within
from replicax.job.processes.events import Event, Events, TaskRun
from replicax.job.processes.outlets import outlets_to
from replicax.job.processes.output import NoLog, shortened
from replicax.job.processes.ports import reserved_ports
from replicax.job.processes.processes import Process
from replicax.job.processes.reaper import Guard
from replicax.job.processes.task import PlannedTask, Program, cache_folder
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.failure import Failure
from replicax.job.supervision.run_job import JobPolicy, Tasks, run_job, signals_as
from replicax.job.supervision.state import Grace
from replicax.program.call_checks import checked_call
from replicax.values.tracebacks import entry_point


@entry_point
def launch(
    function: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    workers: int = 2,
    devices_per_worker: int = 1,
    environment: Mapping[str, str] | None = None,
    grace: float = 5.0,
) -> list[object]:
    """Calls a function in several worker processes of this machine, and waits for them.

    Made for notebooks; it works in a script or a Python prompt too. In the function
    `rx.MultiWorkerMirroredStrategy()` joins the workers, as it does in a script under `replicax run`. Their output
    appears below the cell while they run, each line with the name of its worker. The workers are fresh processes, so it
    does not matter whether the notebook has used JAX before.

    The function may be defined in the notebook. It travels with the functions, classes and values of the notebook that
    it uses; make models, strategies, open files and large data inside of it. Modules are found where the notebook finds
    them.

    The interrupt button (Ctrl-C) interrupts the workers, which have `grace` seconds to end, and pressed again kills
    them. However the call ends, no process is left; not even if the notebook's kernel is killed.

    Args:
        function: The function that each worker runs.
        args: Its arguments; they can be pickled.
        kwargs: Its keyword arguments.
        workers: The number of worker processes.
        devices_per_worker: Virtual CPU devices in each.
        environment: Variables for the workers, in addition to those of this process.
        grace: How long, in seconds, workers have to end when another one has failed, and when all are interrupted.

    Returns:
        The function's result of each worker, in order: numbers, arrays and the like, which can be pickled.

    Raises:
        ArgumentError: An argument is wrong, or cannot be sent to another process; or a result cannot be sent back.
        KeyboardInterrupt: The interrupt button was pressed.
        LaunchError: A process cannot be started.
        RemoteWorkerError: A worker ended without an error of its own: it was killed, say, or called `os._exit`.
        Exception: What the function raised in the worker that failed first. Its cause is a `RemoteWorkerError` with the
            traceback there.

    Example:
        >>> def train(steps):
        ...     strategy = rx.MultiWorkerMirroredStrategy()
        ...     print(f"{strategy.num_replicas_in_sync} replicas, {steps} steps")
        ...     return strategy.worker_index
        >>> rx.notebook.launch(train, args=(10,), workers=2)  # doctest: +SKIP
        [worker 0] 2 replicas, 10 steps
        [worker 1] 2 replicas, 10 steps
        [0, 1]
    """
    args, kwargs = checked_call("function", function, args, kwargs)
    explain_misfit("function", function, args, kwargs)
    workers = checked_int("workers", workers, least=1)
    devices = checked_int("devices_per_worker", devices_per_worker, least=1)
    grace = checked_seconds("grace", grace, zero=True)
    payload = payload_of(Call(function, args, kwargs))
    inherited = _environment(environment or {})
    keep_within(cache_folder(inherited))
    # There is no script: the tasks of the plan call the function.
    options = Options("", workers=workers, devices_per_worker=devices, grace=grace)
    job = Job(options, inherited, new_token(), os.getpid())
    return _run(job, payload)


def _environment(additions: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment that the workers inherit: this process's, and where it finds modules."""
    found = os.pathsep.join(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))
    flags = flags_for_workers(os.environ.get("XLA_FLAGS", ""))
    return {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": found, **additions}


class _Worker(NamedTuple):
    """A worker's process, and the file for its result."""

    process: Process
    result: IO[bytes]

    def written(self) -> bytes | None:
        self.result.seek(0)
        return self.result.read() or None


def _run(job: Job, payload: bytes) -> list[object]:
    """Runs the workers to their end, and returns their results or raises the error of the first that failed."""
    options = job.options
    terminal, events = Terminal(sys.stdout, sys.stderr), Events[Event]()
    started: list[_Worker] = []
    with contextlib.ExitStack() as open_until_the_end:
        guard = open_until_the_end.enter_context(contextlib.closing(Guard()))

        @contextlib.contextmanager
        def start(workers: int, attempt: int) -> Iterator[Tasks]:
            def processes() -> Iterator[Process]:
                for task in make_plan(job, workers, attempt, ports).tasks:
                    started.append(_start(open_until_the_end, payload, terminal, events, guard, task))
                    yield started[-1].process

            with reserved_ports(count_ports(options, workers), HOST) as ports:
                yield Tasks(processes())

        policy = JobPolicy(options.workers, Grace.of(options))
        with signals_as(events):
            attempt, failure = run_job(start, policy, terminal, events)
        if attempt.interrupted:
            raise KeyboardInterrupt
        if failure is not None:
            raise _error(failure, started)
        return [_value(worker) for worker in started]


def _start(
    files: contextlib.ExitStack,
    payload: bytes,
    terminal: Terminal,
    events: Events[Event],
    guard: Guard,
    task: PlannedTask,
) -> _Worker:
    """Starts a worker's process. The files have no names: nothing is left of them, whoever is killed."""
    result: IO[bytes] = files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # It is closed with the others.
    with tempfile.TemporaryFile() as given:
        given.write(payload)
        given.flush()
        given.seek(0)
        numbers = given.fileno(), result.fileno()
        program = Program("call", ":".join(map(str, numbers)), ("result",), numbers)
        outlets = outlets_to(terminal, NoLog(), task.index, task)
        return _Worker(Process(task, program, outlets, events, guard), result)


def _error(failure: Failure, started: Sequence[_Worker]) -> Exception:
    (culprit,) = (worker for worker in started if TaskRun.of(worker.process.task) == failure.culprit)
    words = shortened(culprit.process.last_words)
    return error_from(culprit.process.task.name, failure.how, words, culprit.written())


def _value(worker: _Worker) -> object:
    result = result_of(worker.written())
    if not isinstance(result, Returned):
        raise RemoteWorkerError(worker.process.task.name, ENDED_EARLY, shortened(worker.process.last_words))
    return result.value
