from __future__ import annotations

import socket
import sys
import time

import pytest

from replicax.group.health.traffic import Traffic

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")


def send(one: socket.socket, other: socket.socket, size: int) -> None:
    one.sendall(b"x" * size)
    left = size
    while left:
        left -= len(other.recv(left))


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def moved(traffic: Traffic, least: int) -> int:
    """Returns what has moved, when the system has counted `least` bytes."""
    total, deadline = 0, time.monotonic() + 30
    while total < least and time.monotonic() < deadline:
        total += traffic.moved()
    return total


def test_bytes_of_connections_are_counted_once():
    one, other = connected()
    with one, other:
        traffic = Traffic([])
        traffic.moved()
        send(one, other, 20_000)
        assert moved(traffic, 40_000) >= 40_000  # Both ends are in this process.
        assert traffic.moved() == 0
        send(other, one, 1000)
        assert 2000 <= moved(traffic, 2000) < 20_000


def test_busy_ports_and_what_is_closed_do_not_count():
    (one, other), (third, fourth) = connected(), connected()
    with one, other, third, fourth:
        traffic = Traffic([other.getsockname()[1]])
        traffic.moved()
        send(one, other, 20_000)
        time.sleep(0.1)
        assert traffic.moved() == 0
        send(third, fourth, 1000)
        assert moved(traffic, 2000) == 2000
        third.close()
        fourth.close()
        assert traffic.moved() == 0
        one.send(b"still open")  # What is counted is a copy of the connection, which has been closed again.
        assert other.recv(100) == b"still open"


def test_counting_is_cheap():
    connections = [connected() for _ in range(50)]
    traffic = Traffic([])
    begin = time.process_time()
    for _ in range(10):
        traffic.moved()
    assert time.process_time() - begin < 1.0  # 10 times; once a second while a worker waits
    for one, other in connections:
        one.close()
        other.close()
