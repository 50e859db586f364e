from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from replicax.collectives.packing import JOINED_BYTES
from replicax.program.replicas.packed_sums import evaluate_joined
from replicax.runtime import REPLICA_AXIS, replica_mesh

LARGE = JOINED_BYTES // 4 + 1


class Recorder:
    """Sums over the replicas, and notes the shapes of what it is given at a time."""

    def __init__(self):
        self.calls = []

    def __call__(self, arrays):
        self.calls.append([array.shape for array in arrays])
        return jax.lax.psum(arrays, REPLICA_AXIS)


def mapped(fn, joined=None):
    """Returns `fn` over two replicas; with `joined`, its equations evaluated with their small sums together."""
    mesh, split = replica_mesh(jax.devices()[:2]), PartitionSpec(REPLICA_AXIS)

    def body(x):
        if joined is None:
            return fn(x)
        program = jax.make_jaxpr(fn)(x)
        values = dict(zip([*program.jaxpr.constvars, *program.jaxpr.invars], [*program.consts, x], strict=True))
        evaluate_joined(program.jaxpr.eqns, values, joined)
        return [values[atom] for atom in program.jaxpr.outvars]

    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=split, out_specs=PartitionSpec()))


def total(x):
    return jax.lax.psum(x, REPLICA_AXIS)


def independent(x):
    return [total(x[0, :2]), total(jnp.sin(x[0, :3])), total(x.sum() * jnp.ones(LARGE)), total(jnp.cos(x[0]))]


def chained(x):
    first = total(x[0, :2])
    second = total(x[0, :3] * first.sum())
    return [first, second, total(x[0] + second.sum())]


def used_at_once(x):
    return [total(x[:, :2]).reshape(2) + 1, total(x[:, :3]).reshape(3) * 2]


@pytest.mark.parametrize(
    ("fn", "calls"),
    [
        (independent, [[(2,), (3,), (4,)]]),
        (chained, [[(2,)], [(3,)], [(4,)]]),
        (used_at_once, [[(1, 2), (1, 3)]]),
    ],
    ids=["independent", "chained", "used_at_once"],
)
def test_small_sums_are_made_together_unless_one_needs_another(fn, calls):
    x, recorder = np.arange(8.0, dtype="float32").reshape(2, 4), Recorder()
    for result, expected in zip(mapped(fn, recorder)(x), mapped(fn)(x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert recorder.calls == calls


def test_a_program_without_sums_asks_for_none():
    recorder = Recorder()
    [result] = mapped(lambda x: [jnp.float32(3.0) + 1], recorder)(np.zeros((2, 4), "float32"))
    assert result == 4
    assert recorder.calls == []


def stored_and_read(x):
    memory = jax.new_ref(jnp.zeros(2))
    memory[...] = total(x[0, :2])
    return [memory[...] * 2]


def test_a_mutable_array_is_read_after_a_sum_was_stored_in_it():
    program = jax.make_jaxpr(stored_and_read, axis_env=[(REPLICA_AXIS, 2)])(jnp.ones((1, 4)))
    seen = []

    def doubled(arrays):
        seen.append(len(arrays))
        return [2 * array for array in arrays]

    values = dict(zip(program.jaxpr.invars, [jnp.arange(4.0).reshape(1, 4)], strict=True))
    evaluate_joined(program.jaxpr.eqns, values, doubled)
    np.testing.assert_array_equal(values[program.jaxpr.outvars[0]], [0.0, 4.0])
    assert seen == [1]
