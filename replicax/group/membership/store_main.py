"""Keeps the job store of a meeting and the services of its cliques: `python -m` this module, with an address."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable

from replicax.cluster.addresses import join_address, parse_address
from replicax.cluster.patience import CONNECTING
from replicax.compat.jax_cliques import Service, StoreClient
from replicax.contracts.group import Incarnation
from replicax.errors import MeetingError
from replicax.errors.exit_codes import ExitCode
from replicax.group.membership.job_store import JobStore

_SECONDS_TO_WAIT = 3600.0  # for the next quorum, before it asks the same again
_SECONDS_BETWEEN_LOOKS = 0.5  # at who is still connected
_TRIES = 5
_STDERR = 2
ENDING = "ending"


def serve(address: str, lines: Iterable[str]) -> None:
    """Keeps the job store at an address until `lines` end; they tell who is over, and whether all are to end."""
    services = [Service(address)]
    # Two connections: one of them waits for quorums.
    boards = [JobStore(StoreClient(address, CONNECTING.start)) for _ in range(2)]
    host = parse_address(address, "meeting").host
    threading.Thread(target=_serve_cliques_or_end, args=(boards[0], host, services), daemon=True).start()
    for line in lines:
        what, *numbers = line.split()
        if what == ENDING:
            boards[1].tell_ending()
        else:
            boards[1].end(Incarnation(*map(int, numbers)))
    while any(service.is_used() for service in services):
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _serve_cliques_or_end(job_store: JobStore, host: str, services: list[Service]) -> None:
    """Ends this process if a stranger has written to the job store: nobody can go on."""
    try:
        _serve_cliques(job_store, host, services)
    except MeetingError as error:
        os.write(_STDERR, f"\nThe host of the meeting: {error}\n".encode())
        os._exit(ExitCode.PEER_LOST)


def _serve_cliques(job_store: JobStore, host: str, services: list[Service]) -> None:
    """Starts a service for each quorum that needs a new one."""
    number = 1
    while True:
        record = job_store.quorum(number, _SECONDS_TO_WAIT)
        if record is None:
            continue
        if record.clique == record.number and len(record.incarnations) > 1:
            service, address = _service_at_free_port(host)
            services.append(service)
            job_store.store.put(f"service/{record.clique}", address.encode())
        number = record.number + 1


def _service_at_free_port(host: str) -> tuple[Service, str]:
    for left in reversed(range(_TRIES)):
        with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            port = probe.getsockname()[1]
        address = join_address(host, port)
        try:
            return Service(address), address
        except RuntimeError:  # Another process has taken the port meanwhile.
            if not left:
                raise
    raise AssertionError("unreachable")


if __name__ == "__main__":
    try:
        serve(sys.argv[1], sys.stdin)
    except BaseException:
        traceback.print_exc()
        os._exit(ExitCode.FAILED)
    os._exit(ExitCode.OK)  # JAX would wait for whoever is connected, and a thread waits for quorums.
