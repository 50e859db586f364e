"""What a replica computes after the replicas have met is taken out of the map."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import replicax as rx


@pytest.fixture
def two():
    return rx.MirroredStrategy(["cpu:0", "cpu:1"])


def operands_of_maps(fn, *args):
    """Returns the numbers of operands and of results of each `shard_map` in a function's program."""
    program, arrays = fn._cache.program(args, {})
    compiled, updated, others = program.parts()
    traced = compiled.trace([v.value for v in updated], [v.value for v in others], [], arrays).jaxpr
    return [(len(e.invars), len(e.outvars)) for e in equations_in(traced.jaxpr) if e.primitive.name == "shard_map"]


def equations_in(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations_in(inner)


def test_the_variables_of_an_optimizer_do_not_pass_through_the_map(two, per_replica):
    with two.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build(model.trainable_variables)

    def replica_step(x):
        loss, gradients = rx.value_and_grad(lambda: jnp.sum(model(x) ** 2), model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = rx.function(lambda x: two.run(replica_step, args=(x,)))
    [(operands, results)] = operands_of_maps(step, per_replica(two, np.ones((2, 4)), np.zeros((2, 4))))
    assert operands == 1 + 4  # the rows and the model's weights
    assert results == 1 + 1  # the loss and the packed gradients


def test_what_differs_where_a_branch_depends_on_the_replica_stays_inside(two, per_replica):
    """JAX types the result of the `cond` as equal; taken out of the map it would be one replica's."""
    with two.scope():
        count = rx.Variable(0.0)

    @rx.function
    def step(x):
        def replica_step(x):
            chosen = jax.lax.cond(x > 1, lambda: 10.0, lambda: 20.0)
            count.assign_add(1.0)
            return chosen * 2 + count.value

        return two.run(replica_step, args=(x,))

    np.testing.assert_array_equal(step(per_replica(two, 1.0, 2.0)).stacked, [41.0, 21.0])
    assert float(count.numpy()) == 1.0


def test_effects_happen_on_each_replica(two, per_replica, capfd):
    with two.scope():
        total = rx.Variable(0.0)

    @rx.function
    def step(x):
        def replica_step(x):
            summed = rx.get_replica_context().all_reduce("sum", x)
            jax.debug.print("sum {}", summed)
            total.assign(summed * 2)

        two.run(replica_step, args=(x,))

    step(per_replica(two, 1.0, 2.0))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("sum 3.0") == 2
    assert float(total.numpy()) == 6.0


def test_a_late_result_is_equal_on_all_replicas_and_can_be_differentiated(two, per_replica):
    with two.scope():
        w = rx.Variable(3.0)

    @rx.function
    def gradient(x):
        def replica_step(x):
            return jax.nn.relu(jnp.sin(rx.get_replica_context().all_reduce("sum", w * x)) * 5.0)

        return rx.grad(lambda: two.run(replica_step, args=(x,)), w)()

    expected = jax.grad(lambda w: jax.nn.relu(jnp.sin(w * 0.3) * 5.0))(3.0)
    np.testing.assert_allclose(gradient(per_replica(two, 0.1, 0.2)), expected, rtol=1e-6)


def test_captured_arrays_and_numbers_among_the_arguments_are_right_after_the_map(two, per_replica):
    table = jnp.arange(3.0)
    with two.scope():
        v = rx.Variable(jnp.zeros(3))

    @rx.function
    def step(x, rate, scale):
        captured = scale * 2

        def replica_step(x, rate):
            total = rx.get_replica_context().all_reduce("sum", x)
            v.assign(table * total * rate + captured)
            return v.value, total

        return two.run(replica_step, args=(x, rate))

    new, total = step(per_replica(two, 1.0, 2.0), 0.5, jnp.float32(4.0))
    np.testing.assert_allclose(new, [8.0, 9.5, 11.0])
    np.testing.assert_allclose(v.numpy(), [8.0, 9.5, 11.0])
    assert float(total) == 3.0


def test_an_optimizer_of_optax_comes_after_the_map(two, per_replica):
    """JAX notes the map's mesh with numbers that a compiled function in the traced one is given, or returns."""
    adam = optax.adam(0.1)

    @rx.function
    def step(state, x):
        def replica_step(state, x):
            params, slots = state
            updates, slots = adam.update(jax.grad(lambda w: jnp.sum(w * x))(params), slots)
            return optax.apply_updates(params, updates), slots

        return two.run(replica_step, args=(state, x))

    start = jnp.ones(2)
    params, slots = step(two.replicate((start, adam.init(start))), per_replica(two, 1.0, 2.0))
    np.testing.assert_allclose(params, [0.9, 0.9], rtol=1e-6)
    assert int(slots[0].count) == 1


def test_a_sum_is_added_to_a_constant_that_was_assigned_before(two, per_replica):
    """JAX notes with the constant the mesh of the map; what is computed after it knows another."""
    with two.scope():
        total = rx.Variable(0.0)

    def step(x):
        total.assign(1.0)
        total.assign_add(jax.lax.psum(x, "replica"))

    two.run(step, args=(per_replica(two, 2.0, 3.0),))
    assert float(total) == 6.0
