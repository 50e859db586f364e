from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from replicax.compat.jax_errors import (
    captured_array,
    differ_in_axis_only,
    is_about_array_on_mesh,
    is_about_devices,
    is_call_of_array,
    unknown_axes,
)
from replicax.runtime import REPLICA_AXIS, replica_mesh

SAYS = f"JAX {jax.__version__} says it in other words than compat/jax_errors.py looks for"


def error_of(fn, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011  # Which one it is JAX decides.
        fn(*args)
    return caught.value


def mapped(fn):
    split = PartitionSpec(REPLICA_AXIS)
    return jax.shard_map(fn, mesh=replica_mesh(jax.devices()[:2]), in_specs=split, out_specs=split)


@pytest.mark.parametrize("of", ["what varies", "what is equal"])
def test_an_axis_that_is_not_there_is_named(of):
    caught = []

    def fn(x):
        # Where replicax catches it: inside the trace, before JAX shortens the traceback.
        caught.append(error_of(lambda: jax.lax.psum(x if of == "what varies" else jnp.ones(()), "batch")))
        return x

    jax.jit(mapped(fn))(jnp.ones(2))
    assert unknown_axes(caught[0]) == ("batch",), f"{SAYS}: {caught[0]!r}"


def test_an_error_of_the_users_own_names_no_axis():
    assert unknown_axes(NameError("name 'batch' is not defined")) == ()
    assert unknown_axes(error_of(lambda: [][0])) == ()


def test_the_captured_array_of_several_processes_is_named(monkeypatch):
    array = jax.device_put(jnp.arange(2.0), NamedSharding(replica_mesh(jax.devices()[:2]), PartitionSpec(REPLICA_AXIS)))
    kind = type(array)
    # What an array of two processes answers; one that this process has all of may be captured.
    monkeypatch.setattr(kind, "is_fully_addressable", property(lambda self: False))
    error = error_of(jax.jit(lambda x: x + array), 1.0)
    found = captured_array(error)
    assert found is not None, f"{SAYS}: {error!r}"
    assert "float32[2]" in found
    assert captured_array(ValueError("Got jax.Array: something")) is None


@pytest.mark.parametrize("what", ["computed with", "differentiated on fewer devices"])
def test_a_captured_array_on_the_mesh_is_known(what):
    mesh = replica_mesh(jax.devices()[:2])
    array = jax.device_put(jnp.ones(2), NamedSharding(mesh, PartitionSpec()))
    if what == "computed with":
        error = error_of(jax.jit(mapped(lambda x: x + jnp.sum(array.imag))), jnp.ones(2))
    else:
        split = PartitionSpec(REPLICA_AXIS)
        mesh = replica_mesh(jax.devices()[:1])
        gradient = jax.grad(lambda w, x: jnp.sum(w @ w * x))
        error = error_of(
            jax.jit(jax.shard_map(lambda x: gradient(array, x), mesh=mesh, in_specs=split, out_specs=PartitionSpec())),
            jnp.ones(2),
        )
    assert is_about_array_on_mesh(error), f"{SAYS}: {error!r}"
    assert not is_about_array_on_mesh(error_of(jax.jit(lambda x: x + array), np.ones(3)))


def test_arrays_on_different_devices_are_known():
    one, other = (jax.device_put(np.ones(2), device) for device in jax.devices()[:2])
    error = error_of(jax.jit(lambda x, y: x + y), one, other)
    assert is_about_devices(error), f"{SAYS}: {error!r}"
    assert not is_about_devices(error_of(jax.jit(lambda x, y: x + y), np.ones(2), np.ones(3)))


@pytest.mark.parametrize("traced", [False, True])
def test_a_call_of_an_array_is_known(traced):
    error = error_of(jax.jit(lambda x: x()) if traced else lambda x: x(), jnp.ones(2))
    assert is_call_of_array(error), f"{SAYS}: {error!r}"
    assert not is_call_of_array(error_of(np.zeros, 1, 2, 3, 4, 5))


def test_types_that_differ_in_an_axis_only_are_known():
    def fn(x):
        _, backward = jax.vjp(lambda x: x * 2, x)
        return backward(jnp.ones(1))[0]

    error = error_of(jax.jit(mapped(fn)), jnp.ones(2))
    assert differ_in_axis_only(str(error), REPLICA_AXIS), f"{SAYS}: {error!r}"


def test_types_that_differ_in_something_else_are_another_error():
    error = error_of(lambda: jax.lax.cond(True, lambda: 1.0, lambda: 1))
    assert not differ_in_axis_only(str(error), REPLICA_AXIS)
