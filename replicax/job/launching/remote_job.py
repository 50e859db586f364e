"""A job whose workers run elsewhere: on standard servers (`replicax server`), or on a Ray cluster that is there."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from replicax.checks.environment_names import LEDGER, LIFE
from replicax.cluster import ClusterSpec
from replicax.cluster.addresses import join_address
from replicax.cluster.patience import Patience
from replicax.cluster.signing import new_token
from replicax.contracts.group import Incarnation
from replicax.errors import LaunchError
from replicax.job.elsewhere.remote_process import RemoteProcess
from replicax.job.elsewhere.script_files import packed_sources
from replicax.job.elsewhere.worker_actors import PATIENCE, AgentPool, Job, WorkerGroup
from replicax.job.launching.membership import job_store, membership_log
from replicax.job.options import Options, check_script, make_log_dir
from replicax.job.plan import member_environment
from replicax.job.processes.events import Event, Events
from replicax.job.processes.job_ledger import JobLedger
from replicax.job.processes.outlets import outlets_to
from replicax.job.processes.output import Log
from replicax.job.processes.ports import reserved_ports
from replicax.job.processes.processes import Outlets
from replicax.job.processes.reaper import Guard
from replicax.job.processes.task import WORKER, PlannedTask
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.run_job import ComingAndGoing, JobPolicy, Tasks, run_job, show_end, signals_as
from replicax.ray_cluster.workers import WorkerCluster, connect_workers

PORT = 2222  # Where a server listens if its address has no port, as in TensorFlow's examples.


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """Where the workers run: at the servers of `hosts`, or on the Ray cluster at `address`."""

    address: str | None = None  # "auto", "host:port" or "ray://host:port", as `ray.init` takes it
    hosts: tuple[str, ...] = ()  # the addresses of the servers in the order of the workers; the default port is 2222
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)  # for the workers, on top of each machine's
    start_timeout: float = 120.0  # seconds to wait for servers, and for room

    def connected(self, workers: int, most: int | None = None) -> WorkerCluster:
        """Connects this process with that cluster, for so many workers, or for at most `most` that come and go."""
        if self.hosts:
            addresses = [host if ":" in host else f"{host}:{PORT}" for host in self.hosts]
            spec = ClusterSpec({WORKER: addresses})
            return connect_workers(spec, start_timeout=self.start_timeout, most=most)
        return connect_workers(address=self.address, workers=workers, start_timeout=self.start_timeout, most=most)


def launch_elsewhere(options: Options, elsewhere: Elsewhere, terminal: Terminal | None = None) -> int:
    """Runs a script on workers elsewhere, to which its Python files travel, and returns the exit code, as `launch`."""
    check_elsewhere(options, elsewhere)
    check_script(options)
    script = Path(options.script)
    told = {LEDGER: os.environ[LEDGER]} if LEDGER in os.environ else {}
    job = Job(
        kind="module" if options.module else "file",
        target=options.script if options.module else script.name,
        arguments=options.arguments,
        payload=packed_sources(Path.cwd() if options.module else script.parent),
        environment={**told, **elsewhere.variables},
        devices=options.devices_per_worker,
    )
    log_dir = make_log_dir(options)
    terminal = terminal or Terminal(sys.stdout, sys.stderr)
    events: Events[Event] = Events()
    start = _RemoteTasks(options, elsewhere, job, log_dir, terminal, events)
    ledger, code = JobLedger(log_dir, options.workers, {**os.environ, **elsewhere.variables}, terminal), None
    try:
        code = show_end(run_job(start, JobPolicy.of(options), terminal, events), terminal)
        return code
    finally:
        ledger.end(code)


@dataclasses.dataclass(frozen=True)
class _RemoteTasks:
    """Starts the tasks of a job elsewhere.

    Each attempt connects anew: what has failed may have been the connection, or a machine that is replaced.
    """

    options: Options
    elsewhere: Elsewhere
    job: Job
    log_dir: Path
    terminal: Terminal
    events: Events[Event]

    @contextlib.contextmanager
    def __call__(self, workers: int, attempt: int) -> Iterator[Tasks]:
        with contextlib.ExitStack() as held:
            tasks = (
                self._fixed(workers, attempt, held) if self.options.elastic is None else self._elastic(attempt, held)
            )
            held.enter_context(signals_as(self.events))
            yield tasks

    @property
    def _patience(self) -> Patience:
        return PATIENCE._replace(start=self.elsewhere.start_timeout)

    def _outlets(self, number: int, task: PlannedTask, run: int) -> Outlets:
        return outlets_to(self.terminal, Log(self.log_dir / task.log_name, run), number, task)

    def _fixed(self, workers: int, attempt: int, held: contextlib.ExitStack) -> Tasks:
        def outlets(number: int, task: PlannedTask) -> Outlets:
            return self._outlets(number, task, attempt)

        group = held.enter_context(contextlib.closing(WorkerGroup(self.elsewhere.connected(workers), self._patience)))
        return Tasks(group.start(self.job, attempt, outlets, self.events))

    def _elastic(self, attempt: int, held: contextlib.ExitStack) -> Tasks:
        limits = self.options.elastic
        assert limits is not None
        cluster = self.elsewhere.connected(limits.most, limits.most)
        pool = held.enter_context(
            contextlib.closing(AgentPool(cluster, limits.fewest, self.options.workers, self._patience))
        )
        if pool.placed < limits.most:
            self.terminal.say(
                f"{pool.placed} of {limits.most} workers have room; another one joins whenever a machine has some."
            )
        token, ip = new_token(), cluster.own_ip(self.elsewhere.start_timeout)
        (port,) = held.enter_context(reserved_ports(1, ip))
        guard = held.enter_context(contextlib.closing(Guard()))
        host = held.enter_context(job_store(join_address(ip, port), token, guard))
        pool.begin(self.job, token)

        def start(task: PlannedTask) -> RemoteProcess:
            life = int(task.environment[LIFE])
            return pool.start(task, attempt, self._outlets(task.index, task, attempt + life), self.events)

        def planned(index: int) -> PlannedTask:
            own = member_environment(limits, host.address, Incarnation(index, 0), pool.placed)
            return PlannedTask(WORKER, index, None, {**self.job.environment, **own})

        tasks = map(planned, range(limits.most))
        log = membership_log(self.options, self.log_dir, pool.placed, attempt)
        return Tasks(map(start, tasks), ComingAndGoing(host, log, start))


def check_elsewhere(options: Options, elsewhere: Elsewhere) -> None:
    """Raises a `LaunchError` if a job cannot run where `elsewhere` says."""
    if bool(elsewhere.hosts) == (elsewhere.address is not None):
        raise LaunchError("--on and --hosts exclude each other: --on names a Ray cluster, --hosts standard servers.")
    if not (math.isfinite(elsewhere.start_timeout) and elsewhere.start_timeout > 0):
        raise LaunchError(f"--start-timeout must be a number of seconds above 0, got {elsewhere.start_timeout!r}.")
    if options.ps or options.evaluator:
        option, instead = (
            ("--ps", "Start servers for its tasks (replicax server) and run the script here.")
            if options.ps
            else ("--evaluator", "Run the evaluator's script by itself, where it reads the checkpoints.")
        )
        raise LaunchError(f"{option} starts tasks on this machine, --on and --hosts on others. {instead}")
    if options.islands:
        raise LaunchError("--islands is for workers on this machine: leave out --on and --hosts.")
    if options.address is not None:
        raise LaunchError("--address is for jobs on this machine: leave it out with --on and --hosts.")
    if (
        elsewhere.hosts
        and options.elastic is None
        and (options.workers != len(elsewhere.hosts) or options.fewest_workers != options.workers)
    ):
        raise LaunchError(
            f"--hosts names {len(elsewhere.hosts)} servers, with one worker each: leave --workers out, got "
            f"{options.fewest_workers}:{options.workers}."
        )
