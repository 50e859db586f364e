"""The job of `replicax run` on this machine: its tasks are processes of this launcher."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from replicax.checks.environment_names import LIFE, SNAPSHOTS
from replicax.cluster.patience import Patience
from replicax.cluster.signing import new_token
from replicax.compat.systems import check_system
from replicax.errors import LaunchError
from replicax.job.launching.membership import job_store, membership_log
from replicax.job.launching.snapshot_memory import memory_for_snapshots
from replicax.job.options import Options, check_memory, check_script, make_log_dir
from replicax.job.plan import Job, count_ports, make_plan, meeting_address, meeting_host
from replicax.job.processes.compile_cache import keep_within
from replicax.job.processes.events import Event, Events
from replicax.job.processes.job_ledger import JobLedger
from replicax.job.processes.outlets import outlets_to
from replicax.job.processes.output import Log
from replicax.job.processes.ports import reserved_ports
from replicax.job.processes.processes import Process
from replicax.job.processes.reaper import Guard
from replicax.job.processes.task import PlannedTask, Program, cache_folder
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.run_job import ComingAndGoing, JobPolicy, Tasks, run_job, show_end, signals_as
from replicax.job.supervision.state import PATIENCE


def launch(
    options: Options,
    terminal: Terminal | None = None,
    environment: Mapping[str, str] | None = None,
    patience: Patience = PATIENCE,
) -> int:
    """Runs a script as a cluster of processes on this machine; returns its exit code. Call it in the main thread."""
    check_system()
    check_script(options)
    check_memory(options)
    log_dir = make_log_dir(options)
    inherited = dict(os.environ if environment is None else environment)
    terminal = terminal or Terminal(sys.stdout, sys.stderr)
    ledger, code = JobLedger(log_dir, options.workers, inherited, terminal), None
    job = Job(options, inherited, new_token(), os.getpid())
    keep_within(cache_folder(inherited))
    events: Events[Event] = Events()
    guard = Guard()
    try:
        # Only the main thread can catch signals, and only it lives as long as the process, with which the tasks die.
        with signals_as(events), memory_for_snapshots(options, inherited, guard) as memory:
            inherited[SNAPSHOTS] = memory  # The environment of the tasks.
            start = LocalTasks(job, log_dir, terminal, guard, events, reports=log_dir.absolute())
            code = show_end(run_job(start, JobPolicy.of(options, patience), terminal, events), terminal)
            return code
    finally:
        guard.close()
        ledger.end(code)


@dataclasses.dataclass
class LocalTasks:
    """Starts the tasks of a job as processes of this machine."""

    job: Job
    log_dir: Path
    terminal: Terminal
    guard: Guard
    events: Events[Event]
    reports: Path | None = None  # where the tasks write their reports, unless the environment says where
    planned: tuple[PlannedTask, ...] = ()  # the tasks of the last attempt

    @contextlib.contextmanager
    def __call__(self, workers: int, attempt: int) -> Iterator[Tasks]:
        """Prepares an attempt: its ports, its plan, and the job store of workers that come and go."""
        options = self.job.options
        with contextlib.ExitStack() as held:
            try:
                ports = held.enter_context(reserved_ports(count_ports(options, workers), meeting_host(options)))
            except OSError as error:
                raise LaunchError(
                    f"Nothing can listen at {meeting_host(options)}: {error}. Choose another --address."
                ) from error
            self.planned = make_plan(self.job, workers, attempt, ports, self.reports).tasks
            numbers = {task.name: number for number, task in enumerate(self.planned)}

            def start(task: PlannedTask, run: int) -> Process:
                log, number = Log(self.log_dir / task.log_name, run), numbers[task.name]
                outlets = outlets_to(self.terminal, log, number, task)
                return Process(task, _program(options), outlets, self.events, self.guard)

            started = (start(task, attempt) for task in self.planned)
            if not options.goes_on:
                yield Tasks(started)
                return
            host = held.enter_context(job_store(meeting_address(options, ports), self.job.token, self.guard))
            log = membership_log(options, self.log_dir, options.workers, attempt)
            again = lambda task: start(task, int(task.environment[LIFE]))  # noqa: E731
            yield Tasks(started, ComingAndGoing(host, log, again))


def _program(options: Options) -> Program:
    return Program("module" if options.module else "file", options.script, options.arguments)
