"""Barriers of one client, and of several that are threads with a store in memory; `test_clients.py` has real ones."""

import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from replicax.dtensor import barrier, barriers, create_mesh
from replicax.errors import ArgumentError, BarrierTimeoutError, MeshError
from tests.cluster.fake_store import FakeStore


@pytest.mark.parametrize("dims", [[("x", 8)], [("x", 4), ("y", 2)]])
def test_a_barrier_of_one_client_counts_its_devices(dims):
    assert barrier(create_mesh(dims, devices=jax.devices("cpu")), "here", timeout_in_ms=1) is None


def test_misuse_of_a_barrier():
    mesh = create_mesh([("x", 8)], devices=jax.devices("cpu"))
    with pytest.raises(ArgumentError, match=r"`timeout_in_ms` is a positive int, got 0"):
        barrier(mesh, timeout_in_ms=0)
    with pytest.raises(ArgumentError, match=r"`barrier_name` is a string, got 3"):
        barrier(mesh, 3)
    with pytest.raises(MeshError, match=r"Not a mesh"):
        barrier("x")
    with pytest.raises(RuntimeError, match=r"while a function was being traced"):
        jax.jit(lambda: barrier(mesh))()


class Clients:
    """Clients of one mesh, a thread each."""

    def __init__(self, count):
        self.store, self.count = FakeStore(), count
        self._uses = [barriers._Uses() for _ in range(count)]

    def wait(self, delays, timeout_ms=20_000, name="save"):
        """Lets each client come after its delay, or not at all if that is None; returns the errors."""

        def one(client):
            if delays[client] is None:
                return "absent"
            time.sleep(delays[client])
            try:
                barriers._wait(name, timeout_ms, range(self.count), client, self.store, self._uses[client])
            except BarrierTimeoutError as error:
                return error.missing, error.late
            return "passed"

        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(one, range(self.count)))


def test_a_barrier_lets_all_pass_again_and_again_and_leaves_one_use_in_the_store():
    clients = Clients(3)
    for _ in range(4):
        assert clients.wait([0.0, 0.02, 0.0]) == ["passed"] * 3
    assert {key.split("/")[3] for key in clients.store.values} == {"3"}


def test_those_that_do_not_come_to_a_barrier_are_named():
    assert Clients(4).wait([0, None, 0, None], timeout_ms=200) == [((1, 3), False), "absent", ((1, 3), False), "absent"]


def test_a_client_that_comes_too_late_to_a_barrier_is_told_so_and_the_others_agree():
    assert Clients(3).wait([0, 0.6, 0], timeout_ms=200) == [((1,), False), ((), True), ((1,), False)]


def test_a_client_with_more_time_than_the_others_gives_up_with_them():
    """It would see the last one come; but the first has said already that nobody passes."""
    clients = Clients(3)
    clients.store.put("replicax/barrier/save of 0,1,2/0/missing/decided", b"[2]")
    assert clients.wait([0, 0, 0]) == [((2,), False), ((2,), False), ((), True)]
