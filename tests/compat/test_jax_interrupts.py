"""Shutting down the connections of collectives, and reading arrays that a lost one was to compute."""

from __future__ import annotations

import socket

import jax
import jax.numpy as jnp
import pytest
from jax._src.array import ArrayImpl

from replicax.compat.jax_interrupts import explain_reads, is_of_lost_collective
from replicax.compat.open_sockets import shut_down


def test_connections_from_and_to_the_ports_end_and_no_others():
    unix = socket.socketpair()  # Its addresses have no ports.
    with (
        unix[0],
        unix[1],
        socket.create_server(("127.0.0.1", 0)) as ours,
        socket.create_server(("127.0.0.1", 0)) as others,
    ):
        port = ours.getsockname()[1]
        with (
            socket.create_connection(ours.getsockname()) as cut,
            socket.create_connection(others.getsockname()) as kept,
        ):
            accepted, partner = ours.accept()[0], others.accept()[0]
            with accepted, partner:
                assert shut_down({port}) == 2  # Both ends are in this process.
                assert cut.recv(1) == b""
                assert accepted.recv(1) == b""
                kept.sendall(b"x")
                assert partner.recv(1) == b"x"
        assert shut_down({port}) == 0
        socket.create_connection(ours.getsockname()).close()  # The listener is still there.


@pytest.fixture
def explained(monkeypatch):
    monkeypatch.setattr(ArrayImpl, "_value", ArrayImpl._value)
    monkeypatch.setattr(ArrayImpl, "block_until_ready", ArrayImpl.block_until_ready)
    told = []

    def explain(error):
        told.append(error)
        raise KeyError("explained") from error

    explain_reads(explain)
    return told


def test_arrays_are_read_as_before(explained):
    x = jnp.arange(3.0)
    assert (float(x[1]), x.tolist(), str(x)) == (1.0, [0.0, 1.0, 2.0], "[0. 1. 2.]")
    assert x.block_until_ready() is x
    assert jax.block_until_ready([x, x])[0] is x
    assert explained == []


@pytest.mark.parametrize("read", [lambda x: x.tolist(), lambda x: x.block_until_ready()])
def test_an_array_that_cannot_be_read_is_explained(explained, read):
    x = jnp.arange(3.0)
    x.delete()
    with pytest.raises(KeyError, match="explained"):
        read(x)
    assert "deleted" in str(explained[0])


def test_errors_of_collectives_are_known_by_their_words():
    assert is_of_lost_collective(jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Read error"))
    caused = RuntimeError("The step failed.")
    caused.__cause__ = ValueError("UNKNOWN: Gloo AllReduce failed: Connection closed by peer")
    assert is_of_lost_collective(caused)
    assert not is_of_lost_collective(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
    assert not is_of_lost_collective(None)
