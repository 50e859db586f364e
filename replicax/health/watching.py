"""Starting: the settings of the environment, the address of the health server, and the monitor once all have met."""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import replicax.cluster.runtime as runtime
from replicax.cluster import ClusterConfig, parse_address
from replicax.cluster.runtime import TOKEN
from replicax.errors import ArgumentError
from replicax.health import monitor
from replicax.health.client import Client
from replicax.health.diagnosis import Limits
from replicax.health.peers import History, Peer
from replicax.health.phases import START, now
from replicax.health.server import HealthServer

_log = logging.getLogger(__name__)
STALL_TIMEOUT = "REPLICAX_STALL_TIMEOUT"
SLOW_TIMEOUT = "REPLICAX_SLOW_TIMEOUT"
DEFAULT_STALL_TIMEOUT_S = 300.0
_ADDRESS, _TOKEN = "health address", "health token"
_LOOPBACK = "127.0.0.1"


def stall_timeout_from(given: float | None, environ: Mapping[str, str] = os.environ) -> float | None:
    """Returns after how many seconds to raise an alarm; None for never.

    Args:
        given: What the user has set; the environment decides where this is the default.
        environ: The environment.

    Raises:
        ArgumentError: One of them is no number of seconds.
    """
    if given == DEFAULT_STALL_TIMEOUT_S and environ.get(STALL_TIMEOUT, "").strip():
        return _seconds(environ[STALL_TIMEOUT], STALL_TIMEOUT) or None
    return None if given is None else _seconds(given, "stall_timeout") or None


def _seconds(value: Any, name: str) -> float:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ArgumentError(f"{name} is a number of seconds, 0 for no watching, got {value!r}.")
    return seconds


def start(config: ClusterConfig, timeout_s: float, stall_timeout: float | None) -> list[runtime.Peer]:
    """Connects this process with the others, as `replicax.cluster.runtime.start` does, and looks after them from then.

    Args:
        config: Who this process is.
        timeout_s: How long to wait for the others, in seconds.
        stall_timeout: After how many seconds without progress to end the job; None for never.
    """
    if stall_timeout is None or config.num_processes == 1 or monitor.running() is not None:
        return runtime.start(config, {}, timeout_s)
    slow = _seconds(os.environ.get(SLOW_TIMEOUT) or Limits.slow, SLOW_TIMEOUT)
    limits = Limits(stall_timeout, max(stall_timeout, slow))
    host = _own_host(config)
    server = _listen(host)
    info: dict[str, Any] = {"same stall_timeout": stall_timeout, _ADDRESS: [host, server.port]}
    if config.process_id == 0 and not os.environ.get(TOKEN):
        info[_TOKEN] = secrets.token_hex(16)
    try:
        workers = runtime.start(config, info, timeout_s)
    except BaseException:
        server.server_close()
        raise
    if not all(_ADDRESS in worker.info for worker in workers):
        server.server_close()
        _log.info("JAX was connected before the strategy was made, so the workers are not watched.")
        return workers
    _watch(config, server, workers, limits)
    return workers


def _watch(config: ClusterConfig, server: HealthServer, workers: Sequence[runtime.Peer], limits: Limits) -> None:
    token = os.environ.get(TOKEN) or str(workers[0].info[_TOKEN])
    peers = []
    for i, worker in enumerate(workers):
        if i != config.process_id:
            host, port = worker.info[_ADDRESS]
            history = History(worker.name, _address(config, worker.name), time.monotonic())
            peers.append(Peer(i, Client(str(host), int(port), token), history))
    name = workers[config.process_id].name
    watching = monitor.Monitor(config.process_id, name, _address(config, name), peers, limits)
    now.thread = threading.get_ident()
    now.at = (START, time.monotonic())
    server.answer(token, watching)
    monitor.install(watching)


def _address(config: ClusterConfig, name: str) -> str:
    """Returns the address of a worker in the cluster, empty if the cluster does not tell."""
    job, _, index = name.partition(":")
    return config.spec.task_address(job, int(index)) if config.spec.has_task(job, int(index)) else ""


def _own_host(config: ClusterConfig) -> str:
    """Returns the host to listen at: the one that the cluster names for this worker, else what the coordinator sees."""
    assert config.task is not None and config.coordinator_address is not None  # The rendezvous needs both.
    own = _address(config, str(config.task))
    if own:
        address = parse_address(own, "address")
        return _LOOPBACK if address.is_loopback() else address.host
    coordinator = parse_address(config.coordinator_address, "coordinator address")
    return _LOOPBACK if coordinator.is_loopback() else _host_towards(coordinator.host, coordinator.port)


def _host_towards(host: str, port: int) -> str:
    """Returns the address of this machine from which it reaches another; nothing is sent."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _listen(host: str) -> HealthServer:
    try:
        return HealthServer(host)
    except OSError:  # The cluster may know this machine by an address that it does not have itself, behind a service.
        if host == _LOOPBACK:
            raise
        return HealthServer("")
