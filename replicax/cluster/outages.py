"""Keeping connections with JAX's coordination service alive during an outage of the network."""

from __future__ import annotations

import contextlib
import os
import socket

_OPEN_FILES = "/proc/self/fd"


def outlast_outages(port: int) -> None:
    """Keeps the connections of the service in this process open while nothing arrives from the other side.

    A gRPC server closes a connection over which nothing was acknowledged for 20 s. JAX then aborts the process on the
    other side, even if the network is back. But `stall_timeout` should decide how long a worker may be away. After this
    call the system closes such a connection, after some 15 minutes.

    Args:
        port: The port of the service in this process.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):  # Not Linux: gRPC has not set it either.
        return
    for number in _open_sockets():
        with contextlib.suppress(OSError):  # It was closed meanwhile.
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
    """Returns the file descriptors of this process's sockets; none if the system does not show them."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for number in os.listdir(_OPEN_FILES):
            with contextlib.suppress(OSError):
                if os.readlink(f"{_OPEN_FILES}/{number}").startswith("socket:"):
                    found.append(int(number))
    return found
