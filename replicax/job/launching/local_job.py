"""The job of `replicax run` on this machine: its tasks are processes of this launcher."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from replicax.checks.environment_names import LIFE, SNAPSHOTS, TOKEN
from replicax.cluster.addresses import Address
from replicax.cluster.patience import Patience
from replicax.cluster.signing import new_token
from replicax.compat.systems import check_system
from replicax.contracts.group import Incarnation
from replicax.errors import LaunchError
from replicax.group.membership.membership_log import MembershipLog
from replicax.group.membership.store_process import Host
from replicax.job.launching.join_credentials import INVITATION, write_invitation
from replicax.job.launching.snapshot_memory import memory_for_snapshots
from replicax.job.options import Options, check_script, make_log_dir
from replicax.job.plan import (
    HOST,
    Job,
    count_ports,
    make_plan,
    meeting_address,
    meeting_host,
    member_environment,
)
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
from replicax.job.supervision.joined_workers import JoinListener
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
    log_dir = make_log_dir(options)
    inherited = dict(os.environ if environment is None else environment)
    terminal = terminal or Terminal(sys.stdout, sys.stderr)
    ledger, code = JobLedger(log_dir, options.workers, inherited, terminal), None
    told = inherited.get(TOKEN) if options.join_listener is not None else None  # Those who join must know it.
    job = Job(options, inherited, told or new_token(), os.getpid())
    keep_within(cache_folder(inherited))
    events: Events[Event] = Events()
    join_listener = _join_listener(options, job, log_dir, terminal, events)
    guard = Guard()
    try:
        # Only the main thread can catch signals, and only it lives as long as the process, with which the tasks die.
        with signals_as(events), memory_for_snapshots(options, inherited, guard) as memory:
            inherited[SNAPSHOTS] = memory  # The environment of the tasks.
            start = LocalTasks(job, log_dir, terminal, guard, events, reports=log_dir.absolute())
            code = show_end(run_job(start, JobPolicy.of(options, patience), terminal, events), terminal)
            return code
    finally:
        if join_listener is not None:
            join_listener.close()
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
            ports = held.enter_context(reserved_ports(count_ports(options, workers), meeting_host(options)))
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
            host = held.enter_context(_meeting(meeting_address(options, ports), self.job.token, self.guard))

            def newcomer(incarnation: Incarnation) -> Mapping[str, str]:
                assert options.elastic is not None  # Nobody joins islands.
                began_with = options.workers or options.elastic.fewest
                return member_environment(options.elastic, host.address, incarnation, began_with)

            log = _log(options, self.log_dir, attempt)
            again = lambda task: start(task, int(task.environment[LIFE]))  # noqa: E731
            yield Tasks(started, ComingAndGoing(host, log, again, newcomer))


def _program(options: Options) -> Program:
    return Program("module" if options.module else "file", options.script, options.arguments)


def _join_listener(
    options: Options, job: Job, log_dir: Path, terminal: Terminal, events: Events[Event]
) -> JoinListener | None:
    """Opens the listener at which workers may join, if the job is elastic."""
    if options.elastic is None:
        return None
    try:
        join_listener = JoinListener(options.join_listener or Address(HOST, 0), job.token, events)
        write_invitation(log_dir, join_listener.address, job.token)
    except OSError as error:
        raise LaunchError(
            f"No worker could join at {options.join_listener or HOST}: {error}. Choose another --address."
        ) from error
    if options.join_listener is not None:
        terminal.say(
            f"Workers join with: replicax run --join {join_listener.address} {options.script} (their REPLICAX_TOKEN is "
            f"in {log_dir / INVITATION})"
        )
    return join_listener


@contextlib.contextmanager
def _meeting(address: str, token: str, guard: Guard) -> Iterator[Host]:
    """Keeps the job store of the islands' meeting while the block runs."""
    host = Host(address, token)
    guard.watch([host.pid])
    try:
        yield host
    finally:
        host.close()
        guard.forget(host.pid)


def _log(options: Options, log_dir: Path, attempt: int) -> MembershipLog | None:
    """Returns the membership log of an elastic job, in which an attempt begins."""
    if options.elastic is None:
        return None
    log = MembershipLog(log_dir)
    log.job(*options.elastic, options.workers, attempt)
    return log
