"""Opening the meeting of a job.

`jax.distributed` must not connect the processes: each keeps a JAX of its own, which knows only its own devices, so that
the loss of another process cannot harm it. The sums go through a second client of XLA for CPUs with Gloo's collectives,
made anew whenever other processes take part.

The job store of the meeting is kept by a process that the launcher (`replicax run --islands`) or process 0 starts. If
the machine of that process is lost, all others end.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax

from replicax.checks.environment_names import LIFE, MEETING
from replicax.cluster import ClusterConfig, parse_address
from replicax.cluster.own_address import own_ip, own_ip_of
from replicax.cluster.patience import CONNECTING, Patience
from replicax.cluster.signing import check_token, given_token
from replicax.compat.jax_cliques import Clique, StoreClient
from replicax.compat.jax_processes import leave_connection_to_parent
from replicax.compat.jax_worlds import WorldClique, prepare_gpus
from replicax.contracts.group import Incarnation, install
from replicax.errors import ClusterTimeoutError, MeetingError
from replicax.group.membership.attempts import CliqueLike
from replicax.group.membership.elastic_group import ElasticGroup
from replicax.group.membership.elastic_meeting import ElasticMeeting, Rules
from replicax.group.membership.heartbeat import Heartbeat
from replicax.group.membership.interrupter import CollectiveInterrupter
from replicax.group.membership.job_store import JobStore
from replicax.group.membership.meeting import Meeting, Quorum
from replicax.group.membership.places import Place
from replicax.group.membership.preemption import Preemption, watch_sigterm
from replicax.group.membership.quorum import QuorumRecord
from replicax.group.membership.store_process import Host
from replicax.group.membership.store_watcher import PATIENCE as STORE_PATIENCE, StoreWatcher
from replicax.runtime import clock
from replicax.runtime.ending import only_here, pass_by_garbage

#: `silence` counts where no launcher tells who has ended: who gives no sign of life for so long is left out. While a
#: process waits for a sum, it looks ten times a second whether somebody is lost. After a broken connection, whoever
#: shows no life for `end` has ended.
PATIENCE = Patience(start=300.0, silence=15.0, end=10.0, again=0.1, stall=300.0)
# A call of another member is heard at once; all else may take a second. Each look costs all workers, and the job store.
_SECONDS_BETWEEN_WATCHES = 1.0


@clock.section(clock.MEETING)
def open_meeting(
    config: ClusterConfig, timeout_s: float, stall_timeout: float | None, environ: Mapping[str, str] = os.environ
) -> Meeting:
    """Returns the meeting of the processes of a cluster."""
    if config.num_processes == 1:
        return SingleProcessMeeting(str(config.task or "worker:0"))
    stall_s = stall_timeout or PATIENCE.stall  # without a sign of life: then a process counts as lost
    meeting, heartbeat, store_watcher, _ = _opened(config, config.num_processes, timeout_s, stall_s, environ, Clique)
    atexit.register(only_here(_close), meeting, heartbeat, store_watcher)
    return meeting


class Opened(NamedTuple):
    """A meeting with the threads that belong to it."""

    meeting: ElasticMeeting
    heartbeat: Heartbeat
    store_watcher: StoreWatcher
    connect: Callable[[], JobStore]  # makes another connection with the job store


def _opened(
    config: ClusterConfig,
    size: int,
    timeout_s: float,
    stall_s: float,
    environ: Mapping[str, str],
    clique_type: Callable[[str, int, int, str, float], CliqueLike],
    rules: Rules | None = None,
    ip: str | None = None,
) -> Opened:
    address = environ.get(MEETING, "") or config.coordinator_address
    if not address:
        raise MeetingError(
            f"{config} does not know where the others meet. Start the job with `replicax run --islands`, or give each "
            f"process the address of process 0 (TF_CONFIG, or {MEETING}=host:port)."
        )
    pass_by_garbage()
    leave_connection_to_parent()
    names = [_name(config, index) for index in range(size)]
    if MEETING not in environ and config.process_id == 0 and not _is_listening(address):
        atexit.register(only_here(Host(address, given_token()).let_go))
    _await_listener(address, names[config.process_id], timeout_s)
    # Before all else that waits for the job store.
    store_watcher = StoreWatcher(address, names[config.process_id], STORE_PATIENCE._replace(silence=stall_s))

    def connect() -> JobStore:
        return JobStore(StoreClient(address, timeout_s, stall_s))  # After so long the others have left it out.

    job_store = connect()
    incarnation = Incarnation(config.process_id, _number_of_life(job_store, config.process_id, environ))
    heartbeat = Heartbeat(connect(), incarnation)
    make_clique = functools.partial(_clique, clique_type, job_store, own_ip_of(config, timeout_s) if ip is None else ip)
    silence = stall_s if MEETING in environ else min(stall_s, PATIENCE.silence)
    patience = PATIENCE._replace(start=timeout_s, stall=stall_s, silence=silence)
    meeting = ElasticMeeting(job_store, incarnation, names, make_clique, patience, rules=rules)
    return Opened(meeting, heartbeat, store_watcher, connect)


@clock.section(clock.MEETING)
def open_group(
    config: ClusterConfig,
    fewest: int,
    most: int,
    timeout_s: float,
    stall_timeout: float | None,
    environ: Mapping[str, str] = os.environ,
) -> ElasticGroup:
    """Installs the elastic group of this process, begins its first world, and returns it."""
    if environ.get(MEETING) or config.coordinator_address:
        check_token("the place in Model.fit, for workers that join")  # Else a newcomer would end those with the state.
    prepare_gpus()
    stall_s = stall_timeout or PATIENCE.stall
    rules = Rules(config.num_processes, fewest, renews=True, admits=_is_given_state)
    size = max(most, config.num_processes)
    # Where the launcher keeps the job store, the address of the coordinator may be that of the job store.
    ip = own_ip(str(config.task), "", [environ[MEETING]], timeout_s) if environ.get(MEETING) else None
    opened = _opened(config, size, timeout_s, stall_s, environ, WorldClique, rules, ip)
    is_newcomer = opened.meeting.has_begun()
    patience = opened.meeting.patience._replace(again=_SECONDS_BETWEEN_WATCHES)
    interrupter = CollectiveInterrupter(
        opened.connect(), opened.meeting.incarnation, opened.meeting, patience, opened.store_watcher.tell
    )
    group = ElasticGroup(opened.meeting, interrupter, fewest)
    install(group)
    atexit.register(only_here(_close_group), group, opened.heartbeat, opened.store_watcher)
    preemption = Preemption(opened.connect(), group)
    atexit.register(only_here(preemption.stop))
    watch_sigterm(preemption)
    group.preemption = preemption
    group.begin(is_newcomer)
    return group


def _is_given_state(holders: Mapping[Incarnation, bytes], newcomer: bytes) -> bool:
    return Place.of(newcomer).is_new and any(Place.of(note).gives for note in holders.values())


def _close_group(group: ElasticGroup, heartbeat: Heartbeat, store_watcher: StoreWatcher) -> None:
    if getattr(sys, "last_value", None) is None:  # Otherwise the script has failed: the others cannot wait for it.
        with contextlib.suppress(MeetingError):  # Without the job store there is nobody to wait for.
            group.finish()
    with contextlib.suppress(MeetingError):
        group.leave()
    heartbeat.stop()
    store_watcher.stop()  # Last: a job store that is cut off must not keep this process from its end.


def _close(meeting: ElasticMeeting, heartbeat: Heartbeat, store_watcher: StoreWatcher) -> None:
    with contextlib.suppress(MeetingError):  # Without the job store there is nobody to tell.
        meeting.leave()
    heartbeat.stop()
    store_watcher.stop()


def _clique(
    make: Callable[[str, int, int, str, float], CliqueLike],
    job_store: JobStore,
    ip: str,
    record: QuorumRecord,
    rank: int,
) -> CliqueLike:
    address = job_store.store.get(f"service/{record.clique}", CONNECTING.start)
    if address is None:
        raise MeetingError(f"The host of the meeting has made no service for roll {record.clique}.")
    return make(address.decode(), rank, len(record.incarnations), ip, CONNECTING.start)


def _number_of_life(job_store: JobStore, index: int, environ: Mapping[str, str]) -> int:
    told = environ.get(LIFE, "")
    if told:
        return int(told)
    number = 0
    while not job_store.store.put_if_absent(f"born/{index}/{number}", b""):
        number += 1
    return number


def _await_listener(address: str, name: str, timeout_s: float) -> None:
    """Waits until a process listens at an address: JAX would abort this one if none came."""
    deadline = time.monotonic() + timeout_s
    while not _is_listening(address):
        if time.monotonic() >= deadline:
            raise ClusterTimeoutError(name, timeout_s, ["the host of the meeting"], address)
        time.sleep(PATIENCE.again)


def _is_listening(address: str) -> bool:
    host, port = parse_address(address, MEETING)
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _name(config: ClusterConfig, process: int) -> str:
    chiefs = config.spec.num_tasks("chief") if "chief" in config.spec.jobs else 0
    return f"chief:{process}" if process < chiefs else f"worker:{process - chiefs}"


# The meeting of a job of one process.


class SingleProcessMeeting:
    """A meeting of one: each sum is the value itself."""

    index, size = 0, 1

    def __init__(self, name: str = "worker:0"):
        self.names = (name,)
        self._number = 0

    def gather(self, what: str, note: bytes) -> Quorum:
        self._number += 1
        return Quorum(self._number, (0,), (note,))

    def total(self, quorum: Quorum, values: Sequence[jax.Array]) -> list[jax.Array]:
        return list(values)

    def leave(self) -> None:
        """Does nothing."""
