"""Starting and stopping: connecting this process with the others of its cluster through `jax.distributed`."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from replicax.cluster.addresses import parse_address
from replicax.cluster.config import ClusterConfig, check_synchronous
from replicax.cluster.outages import outlast_outages
from replicax.cluster.own_address import own_ip_of
from replicax.cluster.reach import agree_on_addresses
from replicax.cluster.rendezvous import SECONDS_TO_CONNECT, meet
from replicax.compat.jax_processes import (
    backends_have_started,
    connected_as,
    give_up_connecting,
    let_collectives_listen_at,
    without_preemption_service,
    write_compilation_cache_from_every_process,
)
from replicax.errors import ClusterError, ClusterTimeoutError, ContextError

TOKEN = "REPLICAX_TOKEN"
# JAX aborts the process when its time to connect is up. Whoever waits for it gives up before that, and says why.
_SECONDS_MORE = 30.0
# JAX aborts all processes when one has not been heard of for so long. It must not come before our own reports.
_HEARTBEAT_S = 24 * 60 * 60


@dataclasses.dataclass(frozen=True)
class Member:
    """A process of the cluster, as the others know it.

    Attributes:
        name: Its task, such as `"worker:2"`.
        info: What it told the others when they met.
    """

    name: str
    info: Mapping[str, Any]


def start(config: ClusterConfig, introduce: Callable[[str], Mapping[str, Any]], timeout_s: float) -> list[Member]:
    """Connects this process with the others; returns when all of them have called it.

    Args:
        config: Who this process is.
        introduce: Returns what the others should know of this process, as JSON can hold it; it is given this machine's
            own address (empty if the others must tell). Keys that begin with `"same "` must have the same
            value in all processes. It is not called if JAX is connected already.
        timeout_s: How long to wait for the others, in seconds.

    Returns:
        All processes in their order; an empty list if there is only this one.

    Raises:
        ClusterError: The cluster cannot train in step, its coordinator is not known, or this process does not fit; this
            task's address is of no use, or some process cannot connect with another.
        ClusterTimeoutError: Not all came in time; it says which.
        ContextError: JAX has already started in this process, or cannot connect.
    """
    check_synchronous(config)
    if config.num_processes == 1:
        return []
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < math.inf:
        raise ClusterError("start_timeout", timeout_s, "is no positive number of seconds", "Leave it out for 300.")
    if jax.distributed.is_initialized():
        return _already_connected(config, timeout_s)
    _check_not_started(config)
    address = config.coordinator_address
    assert address is not None  # check_synchronous has seen to it
    names = [_name(config, i) for i in range(config.num_processes)]
    deadline = time.monotonic() + timeout_s
    ip = own_ip_of(config, timeout_s)
    info = {**introduce(ip), "same number of processes": config.num_processes}
    infos = connect(address, config.process_id, names, info, deadline - time.monotonic(), _HEARTBEAT_S, ip)
    write_compilation_cache_from_every_process()
    return [Member(name.partition(" ")[0], each) for name, each in zip(names, infos, strict=True)]


def connect(
    address: str,
    process: int,
    names: Sequence[str],
    info: Mapping[str, Any],
    timeout_s: float,
    heartbeat_s: int,
    ip: str,
) -> list[dict[str, Any]]:
    """Waits for all processes, connects them through `jax.distributed`, and returns what each told the others.

    Args:
        address: `"host:port"` of process 0: there they meet, and JAX's coordination service is.
        process: Number of this process.
        names: For each process how to call it in messages.
        info: What the others should know of this process; see `start`.
        timeout_s: How long to wait for the others, in seconds.
        heartbeat_s: After how many seconds without a sign of life of one process JAX aborts all.
        ip: This machine's own address, where XLA's collectives will listen; empty if the others must tell.

    Raises:
        ClusterError: This process does not fit the others, or some process cannot connect with another.
        ClusterTimeoutError: Not all came in time.
        ContextError: JAX cannot connect them.
    """
    deadline = time.monotonic() + timeout_s
    info = {**info, "same version of JAX": jax.__version__}
    connected_at = ""

    def connect_jax() -> None:
        nonlocal connected_at
        seconds = max(SECONDS_TO_CONNECT, deadline - time.monotonic()) + _SECONDS_MORE
        _initialize(address, process, names, seconds, heartbeat_s)
        connected_at = agree_on_addresses(process, names, address, ip, seconds)

    try:
        infos = meet(address, process, names, info, timeout_s, os.environ.get(TOKEN, ""), connect_jax)
    except (ClusterTimeoutError, KeyboardInterrupt):
        give_up_connecting()
        raise
    let_collectives_listen_at(connected_at)
    return infos


def _initialize(address: str, process: int, names: Sequence[str], timeout_s: float, heartbeat_s: int) -> None:
    try:
        with without_preemption_service():
            jax.distributed.initialize(
                coordinator_address=address,
                num_processes=len(names),
                process_id=process,
                # By default JAX listens on all interfaces.
                coordinator_bind_address=address if parse_address(address, "coordinator").is_loopback() else None,
                initialization_timeout=math.ceil(timeout_s),
                heartbeat_timeout_seconds=heartbeat_s,
            )
    except RuntimeError as error:
        raise ContextError(
            f"JAX could not connect {names[process]}, process {process} of {len(names)}, with the coordination service "
            f"of process 0 at {address}: {error}"
        ) from error
    if process == 0:
        outlast_outages(parse_address(address, "coordinator").port)


def _already_connected(config: ClusterConfig, timeout_s: float) -> list[Member]:
    """Takes part in a connection that was made before: by an earlier strategy, or by the user."""
    found, wanted = connected_as(), (config.process_id, config.num_processes)
    if found != wanted:
        raise ContextError(
            f"jax.distributed is already initialised, as process {found[0]} of {found[1]}, but this process is "
            f"{config}. Make the strategy first, or initialise JAX with the same numbers."
        )
    names = [_name(config, i) for i in range(config.num_processes)]
    if not backends_have_started() and config.coordinator_address is not None:
        ip = own_ip_of(config, timeout_s)
        let_collectives_listen_at(
            agree_on_addresses(config.process_id, names, config.coordinator_address, ip, timeout_s)
        )
    return [Member(name.partition(" ")[0], {}) for name in names]


def _check_not_started(config: ClusterConfig) -> None:
    if backends_have_started():
        raise ContextError(
            f"JAX has already looked for devices in this process, so it cannot join the others any more ({config}). "
            "Make the strategy at the top of the program, before anything creates an array or asks for devices."
        )


def _name(config: ClusterConfig, process: int) -> str:
    """Returns how a process is called in messages: its task and, where it is known, its address."""
    chiefs = config.spec.num_tasks("chief") if "chief" in config.spec.jobs else 0
    job, index = ("chief", process) if process < chiefs else ("worker", process - chiefs)
    address = f" at {config.spec.task_address(job, index)}" if config.spec.has_task(job, index) else ""
    return f"{job}:{index}{address}"
