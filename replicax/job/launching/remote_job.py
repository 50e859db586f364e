"""A job whose workers run elsewhere: on standard servers (`replicax server`), or on a Ray cluster that is there."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from replicax.checks.environment_names import LEDGER
from replicax.cluster import ClusterSpec
from replicax.errors import LaunchError
from replicax.job.elsewhere.script_files import packed_sources
from replicax.job.elsewhere.worker_actors import PATIENCE, Job, WorkerGroup
from replicax.job.options import Options, check_script, make_log_dir
from replicax.job.processes.events import Event, Events
from replicax.job.processes.job_ledger import JobLedger
from replicax.job.processes.outlets import outlets_to
from replicax.job.processes.output import Log
from replicax.job.processes.processes import Outlets
from replicax.job.processes.task import WORKER, PlannedTask
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.run_job import JobPolicy, Tasks, run_job, show_end, signals_as
from replicax.ray_cluster.workers import WorkerCluster, connect_workers

PORT = 2222  # Where a server listens if its address has no port, as in TensorFlow's examples.


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """Where the workers run: at the servers of `hosts`, or on the Ray cluster at `address`."""

    address: str | None = None  # "auto", "host:port" or "ray://host:port", as `ray.init` takes it
    hosts: tuple[str, ...] = ()  # the addresses of the servers in the order of the workers; the default port is 2222
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)  # for the workers, on top of each machine's
    start_timeout: float = 120.0  # seconds to wait for servers, and for room

    def connected(self, workers: int) -> WorkerCluster:
        """Connects this process with that cluster, for so many workers."""
        if self.hosts:
            addresses = [host if ":" in host else f"{host}:{PORT}" for host in self.hosts]
            return connect_workers(ClusterSpec({WORKER: addresses}), start_timeout=self.start_timeout)
        return connect_workers(address=self.address, workers=workers, start_timeout=self.start_timeout)


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

    @contextlib.contextmanager
    def start(workers: int, attempt: int) -> Iterator[Tasks]:
        def outlets(number: int, task: PlannedTask) -> Outlets:
            return outlets_to(terminal, Log(log_dir / task.log_name, attempt), number, task)

        # Each attempt connects anew: what has failed may have been the connection, or a machine that is replaced.
        patience = PATIENCE._replace(start=elsewhere.start_timeout)
        group = WorkerGroup(elsewhere.connected(workers), patience)
        with contextlib.closing(group), signals_as(events):
            yield Tasks(group.start(job, attempt, outlets, events))

    ledger, code = JobLedger(log_dir, options.workers, {**os.environ, **elsewhere.variables}, terminal), None
    try:
        code = show_end(run_job(start, JobPolicy.of(options), terminal, events), terminal)
        return code
    finally:
        ledger.end(code)


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
    if elsewhere.hosts and (options.workers != len(elsewhere.hosts) or options.fewest_workers != options.workers):
        raise LaunchError(
            f"--hosts names {len(elsewhere.hosts)} servers, with one worker each: leave --workers out, got "
            f"{options.fewest_workers}:{options.workers}."
        )
