"""The bytes that this process sends and receives: while they flow, workers that wait are slow, not stuck.

The system counts the bytes of each TCP connection. Connections to the health servers and to JAX's coordination service
are always busy, so they do not count. On other systems than Linux nothing is known, and no bytes count.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Collection

from replicax.compat.open_sockets import connections

_TCP_INFO = getattr(socket, "TCP_INFO", None)
_SIZE_OF_INFO = 256
_COUNTS = struct.Struct("QQ")  # bytes acknowledged, bytes received
_OFFSET_OF_COUNTS = 120


class Traffic:
    """Counts the bytes that the connections of this process send and receive."""

    def __init__(self, busy_ports: Collection[int]):
        self._busy_ports = frozenset(busy_ports)
        self._before: dict[str, int] = {}

    def moved(self) -> int:
        """Returns the number of bytes since the last call, for the connections that are open now."""
        now = _counts(self._busy_ports)
        moved = sum(max(0, count - self._before.get(name, 0)) for name, count in now.items())
        self._before = now
        return moved


def _counts(busy_ports: frozenset[int]) -> dict[str, int]:
    """Returns the number of bytes of each TCP connection of this process."""
    found: dict[str, int] = {}
    for each in connections() if _TCP_INFO is not None else ():
        if not {each.here[1], each.there[1]} & busy_ports:
            with contextlib.suppress(OSError):  # It was closed meanwhile.
                found[each.name] = _count(each.socket)
    return found


def _count(connection: socket.socket) -> int:
    assert _TCP_INFO is not None
    info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE_OF_INFO)
    return sum(_COUNTS.unpack_from(info, _OFFSET_OF_COUNTS)) if len(info) >= _OFFSET_OF_COUNTS + _COUNTS.size else 0
