from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from replicax.compat.jax import vary, varying_axes
from replicax.compat.jax_primitives import assert_equal_over_axis
from replicax.compat.jax_tracing import trace_state
from replicax.runtime import REPLICA_AXIS, replica_mesh

SPLIT = PartitionSpec(REPLICA_AXIS)


def on_two_replicas(fn, *args, out_specs=SPLIT):
    """Runs `fn` on two devices; each gets one entry of every argument, as shape `(1,)`."""
    mesh = replica_mesh(jax.devices()[:2])
    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=SPLIT, out_specs=out_specs))(*args)


def test_a_value_varies_where_it_comes_from_a_split_argument_and_not_after_a_collective():
    seen = []

    def fn(x):
        total = jax.lax.psum(x, REPLICA_AXIS)
        seen.extend([varying_axes(x), varying_axes(total), varying_axes(x + total), varying_axes(1.0)])
        return x

    on_two_replicas(fn, jnp.arange(2.0))
    assert seen[:4] == [{REPLICA_AXIS}, frozenset(), {REPLICA_AXIS}, frozenset()]


def test_nothing_varies_outside_of_shard_map():
    assert varying_axes(jnp.ones(3)) == frozenset()
    assert varying_axes(2) == frozenset()


def test_vary_retypes_an_equal_value_once():
    seen = []

    def fn(x):
        equal = jnp.ones(())
        varying = vary(equal, REPLICA_AXIS)
        seen.append(varying_axes(varying))
        assert vary(varying, REPLICA_AXIS) is varying
        assert vary(x, REPLICA_AXIS) is x
        return varying[None]

    np.testing.assert_array_equal(on_two_replicas(fn, jnp.arange(2.0)), [1.0, 1.0])
    assert seen[0] == {REPLICA_AXIS}


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.vmap, jax.checkpoint], ids=["plain", "vmap", "checkpoint"])
def test_a_promise_of_equality_retypes_without_changing_the_value(wrap):
    def fn(x):
        summed = x + jax.lax.ppermute(x, REPLICA_AXIS, [(0, 1), (1, 0)])
        return wrap(lambda value: assert_equal_over_axis(value, REPLICA_AXIS))(summed)

    result = on_two_replicas(fn, jnp.array([1.0, 2.0]), out_specs=PartitionSpec())
    np.testing.assert_array_equal(result, [3.0])


def test_each_copy_of_a_promised_value_has_an_equal_share_in_its_gradient():
    def fn(x):
        return jax.grad(lambda x: 6.0 * assert_equal_over_axis(x, REPLICA_AXIS).sum())(x)

    np.testing.assert_array_equal(on_two_replicas(fn, jnp.array([1.0, 1.0])), [3.0, 3.0])


def test_the_trace_state_tells_an_inner_trace_from_the_outer_one():
    states = []

    @jax.jit
    def fn(x):
        states.append(trace_state())
        jax.lax.scan(lambda carry, _: (states.append(trace_state()), (carry, None))[1], x, None, length=2)
        states.append(trace_state())
        return x

    fn(1.0)
    before, inside, *_, after = states
    assert before == after
    assert before != inside
    assert before != trace_state()
