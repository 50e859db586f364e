"""The TCP sockets that this process has open, whoever opened them: JAX, Gloo, gRPC. None but on Linux, which tells."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator
from typing import NamedTuple

_OPEN_FILES = "/proc/self/fd"


class Connection(NamedTuple):
    """A TCP connection of this process."""

    name: str  # the system's
    socket: socket.socket
    here: tuple[str, int]  # address and port of this end
    there: tuple[str, int]


def tcp_sockets() -> Iterator[tuple[str, socket.socket]]:
    """Yields each with the system's name for it: a duplicate, which is closed after its turn."""
    try:
        numbers = os.listdir(_OPEN_FILES)
    except OSError:
        return
    for number in numbers:
        opened = _opened(number)
        if opened is not None:
            with opened[1]:
                yield opened


def connections() -> Iterator[Connection]:
    """Yields those that are connected."""
    for name, own in tcp_sockets():
        try:
            here, there = own.getsockname()[:2], own.getpeername()[:2]
        except OSError:  # A listener has no peer.
            continue
        yield Connection(name, own, here, there)


def _opened(number: str) -> tuple[str, socket.socket] | None:
    try:
        name = os.readlink(f"{_OPEN_FILES}/{number}")
        if not name.startswith("socket:"):
            return None
        handle = os.dup(int(number))
    except OSError:  # It was closed meanwhile.
        return None
    try:
        own = socket.socket(fileno=handle)
    except OSError:  # The number belongs to something else by now.
        os.close(handle)
        return None
    # Sockets of other families have addresses of other forms.
    if own.family in (socket.AF_INET, socket.AF_INET6) and own.type == socket.SOCK_STREAM:
        return name, own
    own.close()
    return None


def shut_down(ports: Collection[int], but: Collection[str] = ()) -> int:
    """Shuts down the connections from or to some ports, so that waits for data fail; returns how many there were."""
    # Their listeners stay: Gloo aborts the process if it cannot listen.
    count = 0
    for each in connections():
        if each.name not in but and {each.here[1], each.there[1]} & set(ports):
            with contextlib.suppress(OSError):
                each.socket.shutdown(socket.SHUT_RDWR)
                count += 1
    return count
