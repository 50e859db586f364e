"""Sums of gradients that are left out of the replicas' map, and what must keep its sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from replicax.program.cut.shared_memory_sums import UnsummedEvaluation
from replicax.program.cut.transfers import Crossing, summed
from replicax.program.ir.jaxprs import marked_as_gradient
from replicax.runtime import REPLICA_AXIS, mirrored_sharding, replica_mesh
from tests.program.test_two_devices import Site

REPLICAS = 3
X = np.arange(12.0, dtype=np.float32).reshape(6, 2)


def total(value):
    return jax.lax.psum(value, REPLICA_AXIS)


def program_of(body, outputs: int):
    """A mapped body whose outputs are marked as gradients, flat."""
    mesh = replica_mesh(jax.devices()[:REPLICAS])
    shared = PartitionSpec()
    mapped = jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(REPLICA_AXIS), out_specs=(shared,) * outputs)
    return jax.make_jaxpr(lambda x: [marked_as_gradient(out) for out in mapped(x)])(X)


def evaluated(program, used=()):
    """Returns how often the compiled program sums, which outputs are left unsummed, and their values."""
    jaxpr = program.jaxpr
    evaluation = UnsummedEvaluation(jaxpr.eqns, jaxpr.outvars, {jaxpr.outvars[i] for i in used})

    @jax.jit
    def run(x):
        values = {jaxpr.invars[0]: x}
        evaluation(values)
        return [values[var] for var in jaxpr.outvars]

    sums = run.lower(X).as_text().count("all_reduce")
    return sums, [var in evaluation.unsummed for var in jaxpr.outvars], run(X)


def packed(x):
    pack = total(jnp.concatenate([x.sum(0), x.prod(0)]))
    return pack[:2], pack[2:]


def clipped(x):
    gradient = total(x.sum(0))
    return gradient, gradient / jnp.linalg.norm(gradient)


BODIES = {
    "one of its own": (lambda x: (total(x.sum(0)),), 0, [True]),
    "taken out of a pack": (packed, 0, [True, True]),
    "used in the map": (clipped, 1, [False, False]),
    "a number": (lambda x: (total(x.sum()),), 1, [False]),
    "one of each": (lambda x: (total(x.sum()), total(x.sum(0))), 1, [False, True]),
    "no sum": (lambda x: (jax.lax.pmax(x.max(0), REPLICA_AXIS),), 1, [False]),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("case", BODIES)
def test_a_sum_is_left_out_where_nothing_but_it_is_wanted(case):
    body, sums, unsummed = BODIES[case]
    program = program_of(body, len(unsummed))
    expected = jax.core.eval_jaxpr(program.jaxpr, program.consts, X)
    found_sums, found, values = evaluated(program)
    assert (found_sums, found) == (sums, unsummed)
    for value, wanted, parts in zip(values, expected, unsummed, strict=True):
        whole = sum(np.split(np.asarray(value), REPLICAS)) if parts else value
        np.testing.assert_allclose(whole, wanted, rtol=1e-6)


def test_what_is_used_otherwise_keeps_its_sum():
    assert evaluated(program_of(packed, 2), used=[1])[:2] == (1, [False, False])


def test_devices_of_the_host_read_each_others_arrays_in_place():
    site = Site(1, (0, 1, 2))
    crossing = Crossing(site.home, site.compute)
    (value,) = site.at_home(np.arange(64.0))
    [everywhere] = crossing.on_all_devices([value])
    pointers = {shard.data.unsafe_buffer_pointer() for shard in everywhere.addressable_shards}
    assert pointers == {value.unsafe_buffer_pointer()}
    sent = jax.device_put(np.arange(6.0), jax.NamedSharding(site.mesh, PartitionSpec(REPLICA_AXIS)))
    [parts] = crossing.arrived([sent], [0])
    pointers = [shard.data.unsafe_buffer_pointer() for shard in sent.addressable_shards]
    assert [part.unsafe_buffer_pointer() for part in parts[:2]] == pointers[:2]
    own = crossing.take_own(parts)
    assert parts[1] is None
    np.testing.assert_array_equal(jax.jit(summed)(parts, own), [6.0, 9.0])


def test_one_device_shares_with_nobody():
    mesh = replica_mesh(jax.devices()[:1])
    home = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert not Crossing(home, mirrored_sharding(mesh)).in_place
