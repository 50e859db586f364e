"""Variables in loops and branches of replicas: types of replication, accumulators, Keras's state."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError, ReplicaDivergenceError


@pytest.fixture
def rows(two):
    """Two rows for each of two replicas."""
    return next(iter(two.distribute_dataset([np.arange(1.0, 5.0, dtype=np.float32)])))


def test_replicas_carry_variables_of_all_kinds(two, rows, either_way):
    with two.scope():
        mirrored, mean = rx.Variable(0.0), rx.Variable(0.0, aggregation="mean")
        summed = rx.Variable(10.0, aggregation="sum")
        own = rx.Variable(0.0, synchronization="on_read", aggregation="sum")

    def body(carry, x):
        mirrored.assign_add(1.0)
        mean.assign_add(x)
        summed.assign_add(x)
        own.assign_add(x)
        return carry + x, mirrored.value

    step = rx.function(lambda rows: two.run(lambda xs: rx.lax.scan(body, 0.0, xs), args=(rows,)))
    carry, seen = step(rows)
    assert list(map(float, two.local_results(carry))) == [3.0, 7.0]
    np.testing.assert_allclose(seen, [1.0, 2.0])
    assert [float(v.value) for v in (mirrored, mean, summed, own)] == [2.0, 5.0, 20.0, 10.0]
    assert isinstance(seen, rx.Mirrored)


def test_what_differs_between_replicas_is_refused(two, rows):
    with two.scope():
        v = rx.Variable(0.0, name="v")
    differing = (
        lambda xs: rx.lax.scan(lambda c, x: (c, v.assign(x)), None, xs),
        lambda xs: rx.lax.cond(xs[0] > 2, lambda: v.assign_add(1.0), lambda: v.value),
        lambda xs: rx.lax.while_loop(lambda c: c < xs[0], lambda c: c + v.assign_add(1.0), 0.0),
        lambda xs: rx.lax.switch(xs[0].astype(int), [lambda: v.assign(1.0), lambda: v.assign(2.0)]),
    )
    for fn in differing:
        with pytest.raises(ReplicaDivergenceError, match="'v'"):
            two.run(fn, args=(rows,))
    assert float(v.value) == 0.0


def test_a_branch_of_this_replica_may_count_for_itself(two, rows, either_way):
    with two.scope():
        own = rx.Variable(0, synchronization="on_read", aggregation="sum")
    two.run(lambda xs: rx.lax.cond(xs[0] > 2, lambda: own.assign_add(5), lambda: own.value), args=(rows,))
    assert int(own.value) == 5


def test_a_sum_over_replicas_in_a_branch_that_not_all_take_is_refused(two, rows):
    with two.scope():
        v = rx.Variable(0.0, aggregation="sum", name="total")
        first = rx.Variable(0.0, aggregation="only_first_replica", name="group[0]/first")
        draws = keras.random.SeedGenerator(1, name="draws")
    unscoped = keras.random.SeedGenerator(1, name="unscoped")
    assigning = {
        v.name: lambda xs: v.assign(xs[0]),
        "group[0]/first": lambda xs: first.assign(xs[0]),
        draws.state.path: lambda xs: keras.random.uniform((), seed=draws),
        unscoped.state.path: lambda xs: keras.random.uniform((), seed=unscoped),
    }
    for name, fn in assigning.items():
        with pytest.raises(ProgramError, match=rf"assigns variable '{re.escape(name)}' where not all .* before or"):
            two.run(lambda xs, fn=fn: rx.lax.cond(xs[0] > 2, lambda: fn(xs), lambda: 0.0 * xs[0]), args=(rows,))
    before = np.asarray(draws.state)
    drawn = lambda xs: keras.random.uniform((), seed=draws) * xs[0]  # noqa: E731  # drawn before the branch
    two.run(lambda xs: rx.lax.cond(xs[0] > 2, lambda n: n, lambda n: -n, drawn(xs)), args=(rows,))
    assert (np.asarray(draws.state) != before).any()


def test_keras_metrics_count_in_loops_as_they_do_outside(two, rows):
    with two.scope():
        metric = keras.metrics.Mean()

    def count(xs):
        def body(carry, x):
            metric.update_state(x)
            return carry, None

        rx.lax.scan(body, None, xs)

    for _ in range(3):
        two.run(count, args=(rows,))
    assert float(metric.total.value) == 30.0
    assert float(metric.result()) == 2.5


def _model():
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    outputs = keras.layers.Dense(1)(keras.layers.BatchNormalization()(hidden))
    return keras.Model(inputs, outputs)


def _trained(strategy, looped, weights=None):
    """Trains a Keras model for three steps: by `rx.lax.scan` in one program, or by three programs."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = _model()
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
    if weights is not None:
        model.set_weights(weights)

    def train(batch):
        x, y = batch

        def loss_fn():
            return rx.compute_average_loss(jnp.square(model(x, training=True) - y)[:, 0])

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(8, 3)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")) for _ in range(3)]
    first = model.get_weights()
    if looped:
        stacked = tuple(np.stack(part, axis=1) for part in zip(*batches, strict=True))
        batch = next(iter(strategy.distribute_dataset([stacked])))

        def all_steps(batch):
            by_step = jax.tree.map(lambda rows: jnp.swapaxes(rows, 0, 1), batch)
            return rx.lax.scan(lambda carry, one: (carry, train(one)), None, by_step)[1]

        strategy.run(all_steps, args=(batch,))
    else:
        for batch in strategy.distribute_dataset(batches):
            strategy.run(train, args=(batch,))
    assert int(optimizer.iterations.value) == 3
    return first, model.get_weights()


def test_a_loop_over_training_steps_is_three_steps(two):
    first, apart = _trained(two, looped=False)
    _, looped = _trained(two, looped=True, weights=first)
    for one, other in zip(apart, looped, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)


def test_dropout_draws_anew_in_each_round_and_on_each_replica(two, rows):
    with two.scope():
        dropout = keras.layers.Dropout(0.5)

    def step(xs):
        return rx.lax.scan(lambda c, _: (c, dropout(jnp.ones(64), training=True)), None, length=3)[1]

    masks = [mask.tobytes() for each in two.local_results(two.run(step, args=(rows,))) for mask in np.asarray(each)]
    assert len(set(masks)) == 6
    again = [mask.tobytes() for each in two.local_results(two.run(step, args=(rows,))) for mask in np.asarray(each)]
    assert not set(masks) & set(again)


def test_layers_may_be_built_in_a_body(two, rows):
    with two.scope():
        layer = keras.layers.Dense(2)
    step = rx.function(
        lambda rows: two.run(
            lambda xs: rx.lax.cond(True, lambda: layer(xs[:, None]), lambda: jnp.zeros((2, 2))), (rows,)
        )
    )
    assert step(rows) is not None
    assert layer.built
    assert len(layer.weights) == 2


def test_a_loss_may_loop_over_its_rows(two, rows):
    with two.scope():
        w, seen = rx.Variable(2.0), rx.Variable(0.0, synchronization="on_read", aggregation="sum")

    def step(xs):
        def loss():
            def body(total, x):
                seen.assign_add(x)
                return total + (w * x) ** 2, None

            return rx.lax.scan(body, 0.0, xs)[0]

        return rx.value_and_grad(loss, w)()

    _, gradient = two.run(step, args=(rows,))
    assert float(gradient) == 2 * 2.0 * 30.0
    assert float(seen.value) == 10.0
