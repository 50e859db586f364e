"""Connecting this process with the others of its cluster through `jax.distributed`."""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

import jax

from replicax.checks import is_real
from replicax.cluster.addresses import parse_address
from replicax.cluster.config import ClusterConfig, check_synchronous
from replicax.cluster.exchange import AbsentError, Exchange
from replicax.cluster.outages import outlast_outages
from replicax.cluster.own_address import own_ip_of
from replicax.cluster.patience import CONNECTING
from replicax.cluster.reachability import agree_on_addresses
from replicax.cluster.rendezvous import Infos, await_listener, meet
from replicax.cluster.rendezvous_server import difference
from replicax.cluster.signing import begin_session, given_token, job_token
from replicax.compat import jax_clusters as jax_clusters
from replicax.compat.jax_cache import write_compilation_cache_from_every_process
from replicax.compat.jax_processes import (
    backends_have_started,
    connected_as,
    give_up_connecting,
    leave_connection_to_parent,
    let_collectives_listen_at,
    without_preemption_service,
)
from replicax.errors import ClusterError, ClusterTimeoutError, ContextError
from replicax.runtime.ending import pass_by_garbage

_SESSION = "session"  # a secret number of process 0's
# JAX aborts the process when its time to connect is up. The wait here ends earlier, with an error that says why.
_SECONDS_MORE = 30.0
# JAX aborts all processes when it has not heard of one for this long. Our own reports must come first.
_HEARTBEAT_S = 24 * 60 * 60


@dataclasses.dataclass(frozen=True)
class Member:
    """A process of the cluster, as the others know it."""

    name: str  # its task, such as "worker:2"
    info: Mapping[str, object]  # that it gave the others at the rendezvous


def start(config: ClusterConfig, introduce: Callable[[str], Mapping[str, object]], timeout_s: float) -> list[Member]:
    """Connects this process with the others once all have called it; returns all in order, `[]` if it is alone."""
    check_synchronous(config)
    if config.num_processes == 1:
        return []
    if not is_real(timeout_s) or not 0 < timeout_s < math.inf:
        raise ClusterError("start_timeout", timeout_s, "must be a positive number of seconds", "Leave it out for 300.")
    pass_by_garbage()
    if jax.distributed.is_initialized():
        return _already_connected(config, introduce, timeout_s)
    _check_not_started(config)
    address = config.coordinator_address
    assert address is not None  # check_synchronous has checked it.
    names = [_name(config, i) for i in range(config.num_processes)]
    deadline = time.monotonic() + timeout_s
    ip = own_ip_of(config, timeout_s)
    # Keys that begin with "same " must have the same value in all processes. `ip` is empty if only the others know it.
    info = {**introduce(ip), "same number of processes": config.num_processes}
    infos = connect(address, config.process_id, names, info, deadline - time.monotonic(), _HEARTBEAT_S, ip)
    write_compilation_cache_from_every_process()
    return [Member(name.partition(" ")[0], each) for name, each in zip(names, infos, strict=True)]


def connect(
    address: str,
    process: int,
    names: Sequence[str],
    info: Mapping[str, object],
    timeout_s: float,
    heartbeat_s: int,
    ip: str,
) -> list[dict[str, object]]:
    """Waits for all processes, connects them through `jax.distributed`, and returns the information of each."""
    deadline = time.monotonic() + timeout_s
    info = {**info, "same version of JAX": jax.__version__}
    if process == 0:
        info[_SESSION] = secrets.token_hex(16)
    connected_at = ""

    def connect_jax(infos: Infos) -> None:
        nonlocal connected_at
        begin_session(str(infos[0].get(_SESSION)))
        seconds = max(CONNECTING.start, deadline - time.monotonic()) + _SECONDS_MORE
        if process != 0:
            await_listener(address, seconds)
        _initialize(address, process, names, seconds, heartbeat_s)
        connected_at = agree_on_addresses(process, names, address, ip, seconds)

    try:
        infos = meet(address, process, names, info, timeout_s, given_token(), connect_jax)
    except (ClusterTimeoutError, KeyboardInterrupt):
        give_up_connecting()
        raise
    let_collectives_listen_at(connected_at)
    return infos


def _initialize(address: str, process: int, names: Sequence[str], timeout_s: float, heartbeat_s: int) -> None:
    leave_connection_to_parent()
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


def _already_connected(
    config: ClusterConfig, introduce: Callable[[str], Mapping[str, object]], timeout_s: float
) -> list[Member]:
    """Uses a connection that an earlier strategy or the user has made."""
    found, wanted = connected_as(), (config.process_id, config.num_processes)
    if found != wanted:
        raise ContextError(
            f"jax.distributed is already initialised, as process {found[0]} of {found[1]}, but this process is "
            f"{config}. Make the strategy first, or initialise JAX with the same ids."
        )
    names = [_name(config, i) for i in range(config.num_processes)]
    infos: list[dict[str, object]] = [{} for _ in names]
    if config.coordinator_address is not None:
        ip = own_ip_of(config, timeout_s)
        if not backends_have_started():
            ip = agree_on_addresses(config.process_id, names, config.coordinator_address, ip, timeout_s)
            let_collectives_listen_at(ip)
        # Without a token it would be unknown which process wrote what is read.
        if job_token() and (info := introduce(ip)):
            infos = _introduced(config.process_id, names, info, timeout_s)
    return [Member(name.partition(" ")[0], info) for name, info in zip(names, infos, strict=True)]


def _introduced(
    process: int, names: Sequence[str], info: Mapping[str, object], timeout_s: float
) -> list[dict[str, object]]:
    """Returns what each process tells of itself: through JAX's service, since there is no rendezvous any more."""
    exchange = Exchange("replicax/introduction", process, range(len(names)), timeout_s=timeout_s)
    try:
        infos = [json.loads(each) for each in exchange.exchange_through_first("all", json.dumps(info).encode())]
    except AbsentError as error:
        missing = [names[absent] for absent in error.missing]
        raise ClusterTimeoutError(names[process], timeout_s, missing, missing[0], "; JAX had connected it") from None
    for theirs, name in zip(infos, names, strict=True):
        if problem := difference(theirs, infos[0]):
            raise ClusterError("process", name, f"does not fit the others: {problem}", "Give all the same settings.")
    return infos


def _check_not_started(config: ClusterConfig) -> None:
    if backends_have_started():
        raise ContextError(
            f"JAX has already looked for devices in this process, so it cannot join the others any more ({config}). "
            "Make the strategy at the top of the program, before anything creates an array or asks for devices."
        )


def _name(config: ClusterConfig, process: int) -> str:
    """Returns the name of a process in messages: its task and, if it is known, its address."""
    chiefs = config.spec.num_tasks("chief") if "chief" in config.spec.jobs else 0
    job, index = ("chief", process) if process < chiefs else ("worker", process - chiefs)
    address = f" at {config.spec.task_address(job, index)}" if config.spec.has_task(job, index) else ""
    return f"{job}:{index}{address}"
