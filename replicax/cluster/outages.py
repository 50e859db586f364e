"""Connections with JAX's coordination service that outlive an outage of the network."""

from __future__ import annotations

import contextlib
import os
import socket

_OPEN_FILES = "/proc/self/fd"


def outlast_outages(port: int) -> None:
    """Lets connections of this process's own service live on while nothing arrives from the other side.

    gRPC, on the side of the server, gives up a connection over which nothing was acknowledged for 20 s, and JAX then
    aborts the process on the other side, even if the network is back. How long a worker may be away is for
    `stall_timeout` to say. From here on the system decides, after some 15 minutes.

    Args:
        port: Where the service listens, in this process.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):  # Not Linux: gRPC has not set it either.
        return
    for number in _open_sockets():
        with contextlib.suppress(OSError):  # It has been closed in between.
            _outlast(number, port)


def _outlast(number: int, port: int) -> None:
    handle = os.dup(number)
    try:
        connection = socket.socket(fileno=handle)
    except OSError:
        os.close(handle)
        raise
    with connection:
        internet = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
        if internet and connection.getsockname()[1] == port:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)


def _open_sockets() -> list[int]:
    """Returns the numbers of this process's open sockets; none where the system does not show them."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for number in os.listdir(_OPEN_FILES):
            with contextlib.suppress(OSError):
                if os.readlink(f"{_OPEN_FILES}/{number}").startswith("socket:"):
                    found.append(int(number))
    return found
