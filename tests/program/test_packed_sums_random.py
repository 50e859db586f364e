"""Random programs with their small sums made together, against the same programs as they are."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from replicax.collectives.automatic import AutomaticAllReduce
from replicax.collectives.gradient_sums import sums_together
from replicax.collectives.options import CommunicationOptions
from replicax.collectives.packing import JOINED_BYTES
from replicax.compat.jax import vary
from replicax.program.replicas.packed_sums import evaluate_joined
from replicax.runtime import REPLICA_AXIS, replica_mesh

WIDTH = 4
DTYPES = ["float32", "int32", "int8", "complex64", "bool"]


def total(x):
    return jax.lax.psum(x, REPLICA_AXIS)


@jax.custom_vjp
def with_own_gradient(x):
    return total(x * 2)


with_own_gradient.defvjp(
    lambda x: (with_own_gradient(x), None),
    lambda _, g: (vary(jnp.sin(g), REPLICA_AXIS),),
)


@jax.custom_jvp
def with_own_tangent(x):
    return total(jnp.sin(x))


with_own_tangent.defjvp(lambda x, t: (with_own_tangent(*x), total(t[0] * jnp.cos(x[0]))))


def in_condition(a, b):
    return jax.lax.cond(total(a.sum()) > 0, lambda: total(a + b), lambda: total(a * b) - total(b))


def in_scan(a, b):
    return jax.lax.scan(lambda c, w: (jnp.tanh(c + total(a * c * w)), total(b * w)), total(b), jnp.arange(3.0))[0]


def in_while(a, b):
    times = jnp.int32(jnp.abs(total(a.sum()) * 10)) % 3
    return jax.lax.fori_loop(0, times, lambda _, c: jnp.cos(c + total(a)), total(b))


def gradient_of_sum(a, b):
    weight = jnp.ones(WIDTH)
    return jax.grad(lambda w: (total(w * a) ** 2).sum() + total(jnp.sin(w * b)).sum())(weight)


def gradient_of_sums(a, b):
    """Plain gradients with respect to what is equal on all replicas: JAX sums each by itself."""
    found = jax.grad(lambda w: jnp.sum(jnp.tanh(a * w[0] + w[1]) * b * w[2]))([jnp.ones(WIDTH), 0.5, jnp.ones(1)])
    return found[0] + found[1] + found[2]


def large(a, b):
    return total(jnp.sin(a.sum() + jnp.arange(JOINED_BYTES // 4 + 1)))[:WIDTH] + b


def gathered(a, b):
    return jax.lax.all_gather(a, REPLICA_AXIS).mean(0) + b


def moved(a, b):
    size = jax.lax.axis_size(REPLICA_AXIS)
    return jax.lax.ppermute(a + b, REPLICA_AXIS, [(i, (i + 1) % size) for i in range(size)])


def of_dtype(dtype, a, b):
    scaled = (a * 8 > 0) if dtype == "bool" else a * 8
    summed = total(scaled.astype(dtype))
    return jnp.real(summed).astype("float32") / 8 + (jnp.imag(summed) if dtype == "complex64" else b)


KINDS = [
    lambda a, b: total(a + b),
    lambda a, b: sum(total((a, jnp.cos(b)))),
    lambda a, b: jax.lax.pmean(a, REPLICA_AXIS) + jax.lax.pmax(b, REPLICA_AXIS),
    lambda a, b: jax.vmap(total)(jnp.stack([a, b])).sum(0),
    lambda a, b: jax.jit(lambda a: total(a) * b)(a),
    lambda a, b: jnp.where(total(a) > 0, a, b),
    lambda a, b: jax.grad(lambda a: with_own_gradient(a).sum())(a) + with_own_gradient(b),
    lambda a, b: jax.jvp(with_own_tangent, (a,), (jnp.ones_like(a),))[1] + b,
    lambda a, b: jax.checkpoint(lambda a: total(jnp.sin(a)))(a) + b,
    *[functools.partial(of_dtype, dtype) for dtype in DTYPES],
    *[in_condition, in_scan, in_while, gradient_of_sum, gradient_of_sums, large, gathered, moved],
]


def random_program(seed):
    """Returns a function of one replica's row whose steps each use what two earlier ones have computed."""
    rng = np.random.default_rng(seed)
    kinds, operands = rng.permutation(len(KINDS))[:12], rng.integers(0, 10**6, size=(12, 2))

    def fn(x):
        pool = [x[0], jnp.sin(x[0] * 3), jnp.cos(x[0] - 1), jnp.ones(WIDTH) * 0.5]
        for kind, pair in zip(kinds, operands, strict=True):
            a, b = (vary(pool[number % len(pool)], REPLICA_AXIS) for number in pair)
            pool.append(jnp.tanh(KINDS[kind](a, b)))
        return [jax.lax.all_gather(value, REPLICA_AXIS) for value in pool]

    return fn


def results(fn, x, joined):
    """Returns what `fn` computes on each replica; with `joined`, its small sums together."""
    replicas = len(x)

    def body(x):
        if not joined:
            return fn(x)
        program = jax.make_jaxpr(fn)(x)
        values = dict(zip([*program.jaxpr.constvars, *program.jaxpr.invars], [*program.consts, x], strict=True))
        sum_together = sums_together(AutomaticAllReduce(gathers=True), CommunicationOptions())
        evaluate_joined(program.jaxpr.eqns, values, sum_together)
        return [values[atom] for atom in program.jaxpr.outvars]

    mesh, split = replica_mesh(jax.devices()[:replicas]), PartitionSpec(REPLICA_AXIS)
    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=split, out_specs=split))
    return mapped.lower(x).as_text(), [np.asarray(value) for value in mapped(x)]


# XLA's CPU compiler aborts on the program of seed 11 as JAX writes it: AlgebraicSimplifier, a check of a shape.
SEEDS = [0, *[pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 11)]]


@pytest.mark.daily(1)
@pytest.mark.parametrize("replicas", [2, 3, 8])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs_compute_the_same(seed, replicas):
    x = np.random.default_rng([seed, replicas]).normal(size=(replicas, WIDTH)).astype("float32")
    text, joined = results(random_program(seed), x, joined=True)
    as_written, expected = results(random_program(seed), x, joined=False)
    assert text.count("all_reduce") < as_written.count("all_reduce")
    for value, other in zip(joined, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=0 if replicas == 2 else 2e-6)


@pytest.mark.daily(8)
@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_each_kind_computes_the_same(kind):
    x = np.random.default_rng(kind).normal(size=(2, WIDTH)).astype("float32")

    def fn(x):
        return [jax.lax.all_gather(value, REPLICA_AXIS) for value in (KINDS[kind](x[0], x[0] + 1), total(x[0] * 2))]

    for value, other in zip(results(fn, x, joined=True)[1], results(fn, x, joined=False)[1], strict=True):
        np.testing.assert_array_equal(value, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_short_floats_are_summed_to_their_precision(dtype, replicas):
    # XLA may keep more digits on either way, so the two are not compared with each other.
    x = np.asarray(np.random.default_rng(3).normal(size=(replicas, WIDTH)).astype("float32"), dtype)

    def fn(x):
        return [total(x[0]).astype("float32")[None], total(x[0, :2]).astype("float32")[None]]

    exact, digits = x.astype("float64").sum(0), jnp.finfo(dtype).eps
    for value, expected in zip(results(fn, x, joined=True)[1], (exact, exact[:2]), strict=True):
        np.testing.assert_allclose(value, np.stack([expected] * replicas), atol=2 * digits * np.abs(x).sum(0).max())
