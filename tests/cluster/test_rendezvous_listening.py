"""A process waits until JAX's service listens."""

from __future__ import annotations

import socket
import threading
import time

from replicax.cluster import rendezvous
from tests.cluster.test_rendezvous import free_address


def test_a_process_waits_until_the_service_listens():
    address = free_address()
    found = []
    thread = threading.Thread(target=lambda: found.append(rendezvous.await_listener(address, 20.0)))
    thread.start()
    time.sleep(0.05)
    assert thread.is_alive()
    host, port = address.split(":")
    with socket.create_server((host, int(port))):
        thread.join(20)
    assert found == [None]


def test_the_wait_for_a_service_that_does_not_come_ends():
    begun = time.monotonic()
    rendezvous.await_listener(free_address(), 0.2)
    assert 0.2 <= time.monotonic() - begun < 10
