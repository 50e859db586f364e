"""JAX tells of itself, and where a thread waits for an array."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest
from jax._src.array import ArrayImpl

from replicax.compat import jax_waits
from tests.compat.guards import needs


class Noted:
    """A clock that notes what it is told."""

    def __init__(self):
        self.thread, self.told = threading.get_ident(), []

    def waits(self):
        self.told.append("waits")
        return "before"

    def goes_on(self, before):
        self.told.append(before)

    def compiled(self, kind, seconds):
        self.told.append((kind, seconds >= 0))


@pytest.fixture
def noted():
    """The clock of a process whose JAX tells it, and nobody afterwards."""
    kind, running = ArrayImpl, [Noted()]
    before = kind._value, kind.block_until_ready
    mark = jax_waits._MARK in vars(kind)
    if mark:
        delattr(kind, jax_waits._MARK)
    jax_waits.follow(lambda: running[0])
    yield running[0]
    running[0] = None
    kind._value, kind.block_until_ready = before
    if not mark:
        delattr(kind, jax_waits._MARK)


def test_it_tells_of_tracing_compiling_and_reads(noted):
    value = jax.jit(lambda x: x * 3.5)(jnp.arange(4.0))
    assert [kind for kind, _ in noted.told if kind in ("trace", "compile")][-3:] == ["trace", "compile", "compile"]
    noted.told.clear()
    assert float(value[1]) == 3.5
    assert "waits" not in noted.told  # It has been there.


@pytest.mark.parametrize("read", [float, jax.block_until_ready, lambda value: value.block_until_ready()])
def test_it_tells_of_waiting_for_what_is_computed(noted, read):
    product = jax.jit(lambda x: jnp.sum(x @ x @ x))
    x = jnp.ones((1000, 1000))
    product(x).block_until_ready()
    noted.told.clear()
    read(product(x))
    assert noted.told == ["waits", "before"]


def test_other_threads_are_not_its_own(noted):
    value = jnp.arange(3) + 1
    noted.told.clear()
    thread = threading.Thread(target=value.block_until_ready)
    thread.start()
    thread.join()
    assert noted.told == []


def test_the_names_are_there():
    needs("jax", "ArrayImpl._value", lambda: ArrayImpl._value)
    needs("jax", "ArrayImpl.block_until_ready", lambda: ArrayImpl.block_until_ready)
