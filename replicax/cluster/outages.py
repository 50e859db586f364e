"""How long connections outlast an outage of the network: those of JAX's coordination service, and our own.

A gRPC server closes a connection over which nothing was acknowledged for 20 s. JAX then aborts the process on the other
side, even if the network is back. But `stall_timeout` should decide how long a worker may be away. After
`outlast_outages` the system closes such a connection, after some 15 minutes.
"""

from __future__ import annotations

import contextlib
import socket

from replicax.compat.open_sockets import tcp_sockets

_IDLE, _BETWEEN_PROBES, _PROBES = 0.4, 0.2, 3  # parts of the time, and a number
_LONGEST_S = 12 * 60 * 60.0  # The system takes no more than some hours before the first probe.


def end_if_silent(connection: socket.socket, seconds: float) -> None:
    """Lets a connection end when the other machine has not answered for some time: then `recv` raises an `OSError`."""
    # The system asks that machine. A process there that is stopped or busy is not silent.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = min(seconds, _LONGEST_S)
    limits = {
        "TCP_KEEPIDLE": max(1, int(_IDLE * seconds)),
        "TCP_KEEPINTVL": max(1, int(_BETWEEN_PROBES * seconds)),
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": int(1000 * seconds),
    }
    for name, value in limits.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def outlast_outages(port: int) -> None:
    """Keeps the connections of the service in this process open while nothing arrives from the other side."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):  # Not Linux: gRPC has not set it either.
        return
    for _, each in tcp_sockets():
        with contextlib.suppress(OSError):  # It was closed meanwhile.
            if each.getsockname()[1] == port:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
