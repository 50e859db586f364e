from __future__ import annotations

import os
import socket

import pytest

from replicax.cluster import outages
from replicax.compat import open_sockets

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs Linux")
OPTION = (socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", 0))


def test_only_the_connections_of_the_service_are_changed():
    with socket.create_server(("127.0.0.1", 0)) as service, socket.create_server(("127.0.0.1", 0)) as other:
        service.setsockopt(*OPTION, 20_000)  # As gRPC does; what it accepts inherits it.
        other.setsockopt(*OPTION, 20_000)
        port = service.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as theirs, service.accept()[0] as ours:
            theirs.setsockopt(*OPTION, 30_000)
            assert ours.getsockopt(*OPTION) == 20_000
            before = len(os.listdir("/proc/self/fd"))
            outages.outlast_outages(port)
            assert len(os.listdir("/proc/self/fd")) == before
            assert [each.getsockopt(*OPTION) for each in (service, ours, theirs, other)] == [0, 0, 30_000, 20_000]


def test_where_open_files_are_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(open_sockets, "_OPEN_FILES", "/nowhere")
    outages.outlast_outages(1)


@pytest.mark.parametrize("seconds", [0.1, 7.0, 300.0, 1e9])
def test_the_system_is_told_how_long_a_connection_may_be_silent(seconds: float):
    with socket.socket() as connection:
        outages.end_if_silent(connection, seconds)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        idle, between, probes = (connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names)
        told = connection.getsockopt(*OPTION) / 1000
        assert told == min(seconds, 12 * 60 * 60)
        assert idle + probes * between <= max(told, 4)
