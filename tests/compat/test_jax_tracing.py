from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from replicax.compat.jax_tracing import constants_are_traced, is_kept_by_jax, is_tracing
from replicax.runtime import REPLICA_AXIS, replica_mesh


def mapped(fn):
    mesh, split = replica_mesh(jax.devices()[:2]), PartitionSpec(REPLICA_AXIS)
    return jax.shard_map(fn, mesh=mesh, in_specs=split, out_specs=split)


def at_compile_time(fn):
    def outer(x):
        with jax.ensure_compile_time_eval():
            fn(1.0)
        return x

    return outer


ONE = jnp.float32(1.0)
TWO = jnp.ones(2)
# How the function is run, and whether JAX then traces what it computes of constants.
WAYS = {
    "not at all": (lambda fn: fn(ONE), False),
    "jit": (lambda fn: jax.jit(fn)(ONE), True),
    "make_jaxpr": (lambda fn: jax.make_jaxpr(fn)(ONE), True),
    "scan": (lambda fn: jax.lax.scan(lambda carry, _: (fn(carry), None), ONE, None, length=2), True),
    "grad": (lambda fn: jax.grad(fn)(ONE), False),
    "jvp": (lambda fn: jax.jvp(fn, (ONE,), (ONE,)), False),
    "vmap": (lambda fn: jax.vmap(fn)(TWO), False),
    "hessian": (lambda fn: jax.hessian(fn)(ONE), False),
    "grad in vmap": (lambda fn: jax.vmap(jax.grad(fn))(TWO), False),
    "grad in jit": (lambda fn: jax.jit(jax.grad(fn))(ONE), True),
    "checkpoint in grad": (lambda fn: jax.grad(jax.checkpoint(fn))(ONE), True),
    "shard_map": (lambda fn: mapped(fn)(TWO), True),
    "vmap in shard_map": (lambda fn: mapped(jax.vmap(fn))(TWO), True),
    "grad of shard_map": (lambda fn: jax.grad(lambda x: mapped(fn)(x).sum())(TWO), True),
    "shard_map in jit": (lambda fn: jax.jit(mapped(fn))(TWO), True),
    "compile time in jit": (lambda fn: jax.jit(at_compile_time(fn))(ONE), False),
    "compile time in vmap": (lambda fn: jax.vmap(at_compile_time(fn))(TWO), False),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("way", WAYS)
def test_whether_constants_are_traced_is_what_jax_makes_of_one(way):
    run, expected = WAYS[way]
    seen = []

    def fn(x):
        seen.append((constants_are_traced(), isinstance(jnp.zeros(()), jax.core.Tracer)))
        return x * 2

    run(fn)
    assert seen
    assert set(seen) == {(expected, expected)}, f"JAX {jax.__version__} has other names than compat/jax_tracing.py"


@pytest.mark.parametrize(
    ("way", "tracing", "kept"), [("not at all", False, False), ("grad", True, False), ("jit", True, True)]
)
def test_what_jax_keeps_is_told_from_what_it_runs_anew(way, tracing, kept):
    seen = []
    WAYS[way][0](lambda x: (seen.append((is_tracing(), is_kept_by_jax())), x * 2)[1])
    assert seen[0] == (tracing, kept)
