"""Ports that no other process takes until a worker listens there.

The launcher's sockets are bound but do not listen. Meanwhile the system does not give these ports to a process that
asks for any free port. A worker that asks for one by number gets it, because both sides allow reuse of the address;
gRPC (JAX's coordination service), asyncio and `socket.create_server` do so by default.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_ports(count: int, host: str) -> Iterator[list[int]]:
    """Yields `count` free ports of an address of this machine, and keeps them from others until the block ends."""
    with contextlib.ExitStack() as sockets:
        yield [_reserve(sockets, host) for _ in range(count)]


def _reserve(sockets: contextlib.ExitStack, host: str) -> int:
    holder = sockets.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind((host, 0))
    return int(holder.getsockname()[1])
