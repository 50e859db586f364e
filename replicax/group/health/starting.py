"""The start: reads the settings, opens the health server, and starts the monitor once all workers have met."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence

import replicax.cluster.runtime as runtime
from replicax.checks.environment_names import END_TIMEOUT, SLOW_TIMEOUT, STALL_TIMEOUT
from replicax.cluster import ClusterConfig, parse_address
from replicax.cluster.patience import Patience
from replicax.cluster.signing import job_token, shown
from replicax.errors import ArgumentError
from replicax.group.health import monitor
from replicax.group.health.alarm import PATIENCE
from replicax.group.health.client import Client
from replicax.group.health.diagnosis import Limits
from replicax.group.health.peers import History, Peer
from replicax.group.health.server import HealthServer
from replicax.group.health.traffic import Traffic
from replicax.group.launcher_messages import tell_of_meeting, tell_of_watching
from replicax.runtime import clock
from replicax.runtime.activity import START, now

_log = logging.getLogger(__name__)
DEFAULT_STALL_TIMEOUT_S = 300.0  # of the strategies; a first program may compile for minutes
_ADDRESS = "health address"


def stall_timeout_from(given: float | None, environ: Mapping[str, str] = os.environ) -> float | None:
    """Returns the seconds without progress until an alarm, None for never; the environment replaces the default."""
    if given == DEFAULT_STALL_TIMEOUT_S and environ.get(STALL_TIMEOUT, "").strip():
        return _seconds(environ[STALL_TIMEOUT], STALL_TIMEOUT) or None
    return None if given is None else _seconds(given, "stall_timeout") or None


def _seconds(value: float | str, name: str) -> float:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ArgumentError(f"{name} must be a number of seconds, or 0 to watch nothing, got {value!r}.")
    return seconds


@clock.section(clock.MEETING)
def start(config: ClusterConfig, timeout_s: float, stall_timeout: float | None) -> list[runtime.Member]:
    """Connects this process with the others, as `replicax.cluster.runtime.start`, and watches them from then on."""
    if config.num_processes > 1:
        tell_of_meeting(config.num_processes)
    if stall_timeout is None or config.num_processes == 1 or monitor.running() is not None:
        return runtime.start(config, lambda ip: {}, timeout_s)
    slow = _seconds(os.environ.get(SLOW_TIMEOUT) or Limits.slow, SLOW_TIMEOUT)
    limits = Limits(stall_timeout, max(stall_timeout, slow))
    patience = PATIENCE._replace(end=_seconds(os.environ.get(END_TIMEOUT) or PATIENCE.end, END_TIMEOUT))
    server: HealthServer | None = None

    def introduction(ip: str) -> dict[str, object]:
        nonlocal server
        server = HealthServer(ip)  # Without an address it listens on all of IPv4.
        return {"same stall_timeout": stall_timeout, _ADDRESS: [ip or _host(config), server.port]}

    try:
        workers = runtime.start(config, introduction, timeout_s)
    except BaseException:
        if server is not None:
            server.server_close()
        raise
    if server is None:
        _log.info("JAX was connected before the strategy was made, and REPLICAX_TOKEN is not set: nobody watches.")
    else:
        _watch(config, server, workers, limits, patience)
    return workers


def _watch(
    config: ClusterConfig,
    server: HealthServer,
    workers: Sequence[runtime.Member],
    limits: Limits,
    patience: Patience,
) -> None:
    token = shown(job_token(), "health")
    peers = []
    for i, worker in enumerate(workers):
        if i != config.process_id:
            host, port = _health_address(worker)
            history = History(worker.name, _address(config, worker.name), time.monotonic())
            peers.append(Peer(i, Client(host, port, token), history))
    name = workers[config.process_id].name
    traffic = Traffic(_busy_ports(config, workers))
    address = _address(config, name)
    watching = monitor.Monitor(config.process_id, name, address, peers, limits, traffic, patience=patience)
    now.thread = threading.get_ident()
    now.turn(START)
    server.answer(token, watching)
    monitor.install(watching)
    tell_of_watching(len(workers))


def _health_address(worker: runtime.Member) -> tuple[str, int]:
    """Returns host and port of a worker's health server, as it has told them."""
    address = worker.info[_ADDRESS]
    assert isinstance(address, list), address  # All workers run the same version of replicax.
    host, port = address
    return str(host), int(port)


def _busy_ports(config: ClusterConfig, workers: Sequence[runtime.Member]) -> list[int]:
    """Returns the ports of the health servers and of JAX's coordination service."""
    assert config.coordinator_address is not None
    ports = [_health_address(worker)[1] for worker in workers]
    return [*ports, parse_address(config.coordinator_address, "coordinator address").port]


def _address(config: ClusterConfig, name: str) -> str:
    """Returns the address of a worker in the cluster; empty if the cluster does not say."""
    job, _, index = name.partition(":")
    return config.spec.task_address(job, int(index)) if config.spec.has_task(job, int(index)) else ""


def _host(config: ClusterConfig) -> str:
    """Returns the host of process 0, as the others know it."""
    assert config.coordinator_address is not None  # The rendezvous needs it.
    return parse_address(config.coordinator_address, "coordinator address").host
