"""The plan of one attempt: from the options to the tasks and the environment of each. Nothing here starts anything."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from replicax.launch.options import Options
from replicax.ray_cluster.task_counts import SERVERS, WORKERS

HOST = "127.0.0.1"  # Other machines must not reach a local cluster.
WORKER, EVALUATOR, COORDINATOR = "worker", "evaluator", "chief"
_THREADS_PER_DEVICE = 2
REPORTS = "REPLICAX_LOG_DIR"

# If the launcher itself runs in a cluster, its variables would contradict those of the new cluster.
_OF_ANOTHER_CLUSTER = (
    "TF_CONFIG",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "REPLICAX_COORDINATOR",
    "REPLICAX_NUM_PROCESSES",
    "REPLICAX_PROCESS_ID",
    WORKERS,
    SERVERS,
)

# The cache holds small programs too: one is quick to compile, but a restart needs hundreds.
_CACHE_SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


class Job(NamedTuple):
    """The part of a job that stays the same when it is restarted.

    Attributes:
        options: The user's options.
        environment: The launcher's own environment, from which the tasks inherit.
        token: The secret that the processes of this job share.
        launcher_pid: The launcher's process id.
    """

    options: Options
    environment: Mapping[str, str]
    token: str
    launcher_pid: int


@dataclasses.dataclass(frozen=True)
class PlannedTask:
    """One process of the cluster.

    Attributes:
        type: `"worker"`, `"evaluator"`, or `"chief"` for the coordinator of parameter servers and workers.
        index: Its index among those of its type.
        port: The port where it can listen; None for an evaluator or a coordinator, which listen nowhere.
        environment: All of its environment variables.
    """

    type: str
    index: int
    port: int | None
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its name in messages, such as `"worker 1"`."""
        return f"{self.type} {self.index}"

    @property
    def log_name(self) -> str:
        """The name of its log, such as `"worker-1.log"`."""
        return f"{self.type}-{self.index}.log"


@dataclasses.dataclass(frozen=True)
class Plan:
    """One attempt at a job.

    Attributes:
        attempt: Number of the attempt, from 0.
        workers: Number of workers.
        tasks: All tasks: the workers and perhaps an evaluator, or the coordinator, which itself starts its workers.
    """

    attempt: int
    workers: int
    tasks: tuple[PlannedTask, ...]


def count_ports(options: Options, workers: int) -> int:
    """Returns the number of ports that `make_plan` needs."""
    return 0 if options.ps else workers


def make_plan(job: Job, workers: int, attempt: int, ports: Sequence[int], log_dir: Path | None = None) -> Plan:
    """Returns the tasks of one attempt.

    Args:
        job: What stays the same in all attempts.
        workers: Number of workers in this attempt.
        attempt: Its number, from 0.
        ports: Free ports; `count_ports` says how many.
        log_dir: Where the tasks write their reports, unless the environment decides that.
    """
    options = job.options
    addresses = [f"{HOST}:{port}" for port in ports]
    common = _common(job, attempt) if log_dir is None else {REPORTS: str(log_dir), **_common(job, attempt)}

    if options.ps:
        counts = {WORKERS: str(workers), SERVERS: str(options.ps)}
        return Plan(attempt, workers, (PlannedTask(COORDINATOR, 0, None, {**common, **counts}),))

    def task(kind: str, index: int, port: int | None) -> PlannedTask:
        role = {"cluster": {WORKER: addresses}, "task": {"type": kind, "index": index}}
        own = {"TF_CONFIG": json.dumps(role)} | (_jax(addresses, index) if kind == WORKER else {})
        return PlannedTask(kind, index, port, {**common, **own})

    tasks = [task(WORKER, index, port) for index, port in enumerate(ports)]
    tasks += [task(EVALUATOR, 0, None)] if options.evaluator else []  # Not in the cluster, as with TensorFlow.
    return Plan(attempt, workers, tuple(tasks))


def _common(job: Job, attempt: int) -> dict[str, str]:
    """Returns the environment that all tasks share: the user's own with additions."""
    inherited = {name: value for name, value in job.environment.items() if name not in _OF_ANOTHER_CLUSTER}
    defaults = {
        "KERAS_BACKEND": "jax",
        "JAX_COMPILATION_CACHE_DIR": str(cache_folder(inherited)),
        **_CACHE_SETTINGS,
    }
    devices = job.options.devices_per_worker
    return {
        **defaults,
        **inherited,
        **_past_proxies(inherited),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "NPROC": str(_threads(devices, inherited.get("NPROC", ""))),
        "PYTHONUNBUFFERED": "1",
        "REPLICAX_TOKEN": job.token,
        "REPLICAX_ATTEMPT": str(attempt),
        "REPLICAX_LAUNCHER_PID": str(job.launcher_pid),
    }


def _past_proxies(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which gRPC uses no proxy to reach this machine.

    Without a proxy none is needed, and JAX would warn of the variable.
    """
    names = {name.lower() for name, value in inherited.items() if value}
    if not names & {"grpc_proxy", "https_proxy", "http_proxy", "all_proxy"}:
        return {}
    return {"no_proxy": ",".join(filter(None, [inherited.get("no_proxy"), HOST]))}


def _jax(workers: Sequence[str], index: int) -> dict[str, str]:
    return {
        "JAX_COORDINATOR_ADDRESS": workers[0],
        "JAX_COORDINATOR_BIND_ADDRESS": workers[0],  # JAX would listen on all interfaces.
        "JAX_NUM_PROCESSES": str(len(workers)),
        "JAX_PROCESS_ID": str(index),
    }


def _threads(devices: int, previous: str) -> int:
    """Returns the size of XLA's thread pool: with fewer than two threads per device, collectives can deadlock."""
    return max(_THREADS_PER_DEVICE * devices, os.cpu_count() or 1, int(previous) if previous.isdecimal() else 1)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Returns the folder of compiled programs that all jobs of this user share."""
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".cache"
    return Path(home) / "replicax" / "compiled"
