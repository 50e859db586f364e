"""Ports that no other process takes until a worker listens there."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from replicax.launch.plan import HOST


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Yields `count` free ports of the loopback address, and keeps them from others until the block ends.

    The launcher's sockets are bound but do not listen. Meanwhile the system does not give these ports to a process that
    asks for any free port. A worker that asks for one by number gets it, because both sides allow reuse of the address;
    gRPC (JAX's coordination service), asyncio and `socket.create_server` do so by default.
    """
    with contextlib.ExitStack() as sockets:
        yield [_reserve(sockets) for _ in range(count)]


def _reserve(sockets: contextlib.ExitStack) -> int:
    holder = sockets.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((HOST, 0))
    return int(holder.getsockname()[1])
