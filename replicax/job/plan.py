"""The plan of one attempt: from the options to the tasks and the environment of each. Nothing here starts anything."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from replicax.checks import environment_names
from replicax.checks.environment_names import ELASTIC, LIFE, LOG_DIR, MEETING, PS_SERVERS, PS_WORKERS
from replicax.cluster.addresses import join_address
from replicax.cluster.own_address import LOOPBACK
from replicax.contracts.group import Incarnation
from replicax.group.membership.launcher_news import ElasticRange
from replicax.job.options import Options
from replicax.job.processes.task import CHIEF, EVALUATOR, WORKER, PlannedTask, common_environment, jax_environment

HOST = LOOPBACK  # Other machines must not reach a local cluster.
_DEVICE_COUNT = "--xla_force_host_platform_device_count"


class Job(NamedTuple):
    """The part of a job that stays the same when it is restarted."""

    options: Options
    environment: Mapping[str, str]  # of the launcher; the tasks inherit it
    token: str
    launcher_pid: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """One attempt at a job."""

    attempt: int  # from 0
    workers: int
    # Workers and perhaps an evaluator; or the coordinator, which itself starts its workers.
    tasks: tuple[PlannedTask, ...]


def count_ports(options: Options, workers: int) -> int:
    """Returns the number of ports that `make_plan` needs."""
    return 0 if options.ps else (workers if options.address is None else 0) + options.goes_on


def make_plan(job: Job, workers: int, attempt: int, ports: Sequence[int], log_dir: Path | None = None) -> Plan:
    """Returns the tasks of one attempt; `ports` are free, and as many as `count_ports` says."""
    options = job.options
    ports, meeting = (ports[:-1], meeting_address(options, ports)) if options.goes_on else (ports, "")
    addresses = [f"{HOST}:{port}" for port in ports]
    # Where the tasks write their reports, unless the environment says where.
    common = _common(job, attempt) if log_dir is None else {LOG_DIR: str(log_dir), **_common(job, attempt)}

    if options.ps:
        counts = {PS_WORKERS: str(workers), PS_SERVERS: str(options.ps)}
        return Plan(attempt, workers, (PlannedTask(CHIEF, 0, None, {**common, **counts}),))

    def task(kind: str, index: int, port: int | None) -> PlannedTask:
        role = {"cluster": {WORKER: addresses}, "task": {"type": kind, "index": index}}
        own = {"TF_CONFIG": json.dumps(role)} | (jax_environment(addresses, index) if kind == WORKER else {})
        if meeting:
            own |= {MEETING: meeting, LIFE: "0"}
        if options.elastic is not None:
            own[ELASTIC] = str(options.elastic)
        return PlannedTask(kind, index, port, {**common, **own})

    if options.elastic is not None and options.address is not None:
        own = [member_environment(options.elastic, meeting, Incarnation(index, 0), workers) for index in range(workers)]
        tasks = [PlannedTask(WORKER, index, None, {**common, **each}) for index, each in enumerate(own)]
    else:
        tasks = [task(WORKER, index, port) for index, port in enumerate(ports)]
    tasks += [task(EVALUATOR, 0, None)] if options.evaluator else []  # Not in the cluster, as with TensorFlow.
    return Plan(attempt, workers, tuple(tasks))


def flags_for_workers(flags: str) -> str:
    """Returns this process's `XLA_FLAGS` without the one that counts devices: workers are told theirs."""
    return " ".join(flag for flag in flags.split() if not flag.startswith(_DEVICE_COUNT))


def meeting_host(options: Options) -> str:
    """Returns the name or IP address at which the workers reach this machine."""
    return HOST if options.address is None else options.address


def meeting_address(options: Options, ports: Sequence[int]) -> str:
    """Returns where workers that come and go meet, given the ports of `make_plan`."""
    return join_address(meeting_host(options), ports[-1])


def member_environment(elastic: ElasticRange, meeting: str, incarnation: Incarnation, workers: int) -> dict[str, str]:
    """Returns the cluster's variables for a worker of an elastic job that knows no address but that of the meeting."""
    return {
        environment_names.COORDINATOR: meeting,
        environment_names.NUM_PROCESSES: str(max(workers, incarnation.index + 1)),
        environment_names.PROCESS_ID: str(incarnation.index),
        MEETING: meeting,
        LIFE: str(incarnation.number),
        ELASTIC: str(elastic),
    }


def _common(job: Job, attempt: int) -> dict[str, str]:
    """Returns the environment that all tasks share: the user's own with additions."""
    shared = common_environment(job.environment, job.options.devices_per_worker, job.token, attempt)
    return {**shared, environment_names.LAUNCHER_PID: str(job.launcher_pid)}
