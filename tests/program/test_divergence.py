from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from replicax.program.ir.divergence import find_divergence
from tests.soak.replica_safety import soak


def found(two, fn, *equal):
    """Returns what `find_divergence` says of `fn(own, *equal)`, traced as one replica."""
    programs = []

    def body(own, *equal):
        programs.append(jax.make_jaxpr(fn)(own[0], *equal))
        return []

    spec = jax.sharding.PartitionSpec
    specs = (spec("replica"), *[spec()] * len(equal))
    mapped = jax.shard_map(body, mesh=two.mesh, in_specs=specs, out_specs=spec())
    jax.eval_shape(mapped, jnp.zeros(2), *[jnp.float32(x) for x in equal])
    return find_divergence(programs[0])


def differ(two, fn, *equal):
    return [why is not None for why in found(two, fn, *equal).outputs]


def test_each_result_is_told_apart(two):
    def fn(own, e):
        return own + e, e * 2, jax.lax.psum(own, "replica"), jax.lax.axis_index("replica"), jnp.where(own > 1, e, e)

    assert differ(two, fn, 1.0) == [True, False, False, True, True]


def test_a_predicate_spreads_to_everything_that_is_chosen(two):
    def fn(own, e):
        chosen = jax.lax.cond(own > 0, lambda: (2 * e, 1.0), lambda: (3 * e, 2.0))
        alike = jax.lax.cond(e > 0, lambda: (e, own), lambda: (e + 1, own))
        return *chosen, *alike

    assert differ(two, fn, 1.0) == [True, True, False, True]


def test_a_loop_is_followed_until_nothing_changes(two):
    def rotate(state, _):
        _, b, c, d = state
        return (b, c, d, d), None

    def fn(own, e):
        varied = [jax.lax.pcast(x, ("replica",), to="varying") for x in (e, e, e)]
        carried, _ = jax.lax.scan(rotate, (*varied, own), None, 2)
        count = jax.lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0] + s[1], s[1] + 1), (0.0, e))
        return *carried, *count

    assert differ(two, fn, 1.0) == [True, True, True, True, False, False]


def test_the_condition_of_a_loop_may_look_at_a_value_around_it(two):
    def fn(own, e):
        return jax.lax.while_loop(lambda s: s < own, lambda s: s + 1, e)

    assert differ(two, fn, 1.0) == [True]


def test_a_predicate_inside_of_calls_counts(two):
    @jax.custom_vjp
    def custom(own, e):
        return jax.lax.cond(own > 0, lambda: e, lambda: 2 * e)

    custom.defvjp(lambda own, e: (custom(own, e), None), lambda _, ct: (ct, ct))

    def fn(own, e):
        nested = jax.jit(jax.checkpoint(lambda x: jax.lax.cond(own > 0, lambda: x, lambda: 2 * x)))
        return nested(e), custom(own, e), jax.jit(lambda x: x + 1)(e)

    assert differ(two, fn, 1.0) == [True, True, False]


def test_callbacks_and_mutable_arrays(two):
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    def fn(own, e):
        reference = jax.new_ref(e)
        reference[...] += 1.0
        untouched = reference[...]
        jax.lax.cond(own > 0, lambda: reference.set(3.0), lambda: None)
        return io_callback(np.asarray, shape, e), jax.pure_callback(np.asarray, shape, e), untouched, reference[...]

    assert differ(two, fn, 1.0) == [True, True, False, True]


def test_collectives_of_some_replicas_are_found_where_they_are(two):
    def loop(own, e):
        return jax.lax.fori_loop(0, own.astype(int), lambda i, s: s + jax.lax.psum(e, "replica"), 0.0)

    def nested(own, e):
        inner = jax.jit(lambda: jax.lax.cond(e > 0, lambda: jax.lax.pmean(e, "replica"), lambda: e))
        return jax.lax.cond(own > 0, inner, lambda: e)

    for fn in (loop, nested):
        [(equation, why)] = found(two, fn, 1.0).split_meetings
        assert equation.primitive.name == "psum_invariant"
        assert "test_divergence.py" in why.reason
    assert found(two, lambda own, e: jax.lax.cond(e > 0, lambda: jax.lax.psum(own, "replica"), lambda: e), 1.0)


def test_what_is_gathered_is_equal_though_its_type_varies(two):
    """Its type would refuse the collective, since the predicate seems to vary."""

    def fn(own, e):
        everyone = jax.lax.all_gather(own, "replica")
        return jax.lax.cond(everyone.sum() > 0, lambda: jax.lax.psum(own, "replica"), lambda: e)

    divergence = found(two, fn, 1.0)
    assert (divergence.outputs, divergence.split_meetings) == ([None], [])


@pytest.mark.nightly
@pytest.mark.parametrize("length", [2_000, 20_000])
def test_the_time_is_linear_in_the_size(two, length):
    def fn(own, e):
        for _ in range(length // 4):
            e = jax.lax.neg(jax.lax.neg(e))
            own = jax.lax.neg(jax.lax.neg(own))
        return own, e

    programs = []
    mapped = jax.shard_map(
        lambda own: programs.append(jax.make_jaxpr(fn)(own[0], 1.0)) or [],
        mesh=two.mesh,
        in_specs=jax.sharding.PartitionSpec("replica"),
        out_specs=jax.sharding.PartitionSpec(),
    )
    jax.eval_shape(mapped, jnp.zeros(2))
    begin = time.process_time()
    find_divergence(programs[0])
    assert time.process_time() - begin < 1e-4 * length


def test_nested_loops_are_not_repeated_for_each_level(two):
    """Each inner program is looked at once for each way in which its inputs differ."""

    def nested(own, e, depth):
        if depth == 0:
            return e + 1.0
        return jax.lax.fori_loop(0, 2, lambda i, s: nested(own, s, depth - 1), e)

    begin = time.process_time()
    assert differ(two, lambda own, e: nested(own, e, 25), 1.0) == [False]
    assert time.process_time() - begin < 20


@pytest.mark.slow
def test_random_replica_functions_are_what_their_types_claim():
    jax.config.update("jax_disable_most_optimizations", True)  # Most of the time is XLA's.
    try:
        found = soak(programs=10, seed=5)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert [line for line in found["details"] if line.startswith("unsound")] == []
    assert found["counts"]["accepted"] >= 3
    assert found["counts"]["refused"] >= 1
