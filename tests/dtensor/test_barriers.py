"""Barriers of one client; those of two are in `test_clients.py`."""

import jax
import pytest

from replicax.dtensor import barrier, create_mesh
from replicax.errors import ArgumentError, MeshError


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
