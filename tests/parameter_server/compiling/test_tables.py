"""Embeddings under a parameter server strategy: the same numbers as one device, and only the rows that were touched."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.parameter_server.fakes import strategy_of

ROWS, DIMENSIONS, BATCH = 2000, 16, 12
WHOLE = ROWS * DIMENSIONS * 4


def batches():
    """Ids of shape `(12, 3)`, some of them twice, and targets of shape `(12,)`."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        yield rng.integers(0, ROWS, (BATCH, 3)) // 7 * 7, rng.standard_normal(BATCH).astype(np.float32)


def make_model():
    keras.utils.set_random_seed(0)
    embedding = keras.layers.Embedding(ROWS, DIMENSIONS)
    head = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), embedding, keras.layers.Flatten(), head])
    return model


def make_step(model, optimizer, extra=None):
    def step(batch):
        ids, targets = batch

        def loss_fn():
            loss = jnp.mean((model(ids)[:, 0] - targets) ** 2)
            return loss if extra is None else loss + extra(model)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def trained_alone(make_optimizer, extra=None):
    with rx.OneDeviceStrategy("cpu:0").scope():
        model, optimizer = make_model(), make_optimizer()
    step = rx.function(make_step(model, optimizer, extra))
    losses = [float(step(batch)) for batch in batches()]
    return losses, [np.asarray(v.value) for v in [*model.variables, *optimizer.variables]]


def trained_on_servers(make_optimizer, extra=None, servers=2, shards=3, **options):
    partitioner = rx.FixedShardsPartitioner(shards) if shards else None
    with strategy_of(1, servers, max_staleness=0, variable_partitioner=partitioner, **options) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            model, optimizer = make_model(), make_optimizer()
        step = make_step(model, optimizer, extra)
        results = [coordinator.schedule(step, args=(batch,)) for batch in batches()]
        losses = [float(loss) for loss in coordinator.fetch(results)]
        values = [np.asarray(v.value) for v in [*model.variables, *optimizer.variables]]
        return losses, values, coordinator.stats()


def assert_same(got, wanted):
    for mine, his in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, his, rtol=2e-6, atol=1e-7)


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "adamw": lambda: keras.optimizers.AdamW(0.01),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shards", [0, 3], ids=["whole", "cut"])
def test_a_table_is_trained_as_on_one_device(fake_ray, name, shards):
    losses, values = trained_alone(OPTIMIZERS[name])
    got_losses, got, stats = trained_on_servers(OPTIMIZERS[name], shards=shards)
    np.testing.assert_allclose(got_losses, losses, rtol=1e-6)
    assert_same(got, values)
    # Rows of the table and their gradients, 36 ids at most, and the small variables.
    assert (stats.bytes_pulled + stats.bytes_pushed) / stats.steps < 0.2 * WHOLE


def test_lazy_rows_leave_the_others_alone(fake_ray):
    _, values = trained_alone(lambda: keras.optimizers.Adam(0.01))
    _, got, _ = trained_on_servers(lambda: keras.optimizers.Adam(0.01), lazy_rows=True)
    touched = np.zeros(ROWS, bool)
    touched[np.concatenate([ids.ravel() for ids, _ in batches()])] = True
    begin = np.asarray(make_model().layers[0].embeddings.value)
    np.testing.assert_array_equal(got[0][~touched], begin[~touched])
    assert np.abs(got[0][touched] - begin[touched]).max() > 1e-3
    assert np.abs(got[0] - values[0]).max() > 1e-4  # not what one device computes


def test_a_table_that_is_used_whole_is_pulled_whole(fake_ray):
    def penalty(model):
        return 1e-3 * jnp.sum(jnp.square(model.layers[0].embeddings.value))

    losses, values = trained_alone(OPTIMIZERS["adam"], penalty)
    got_losses, got, stats = trained_on_servers(OPTIMIZERS["adam"], penalty)
    np.testing.assert_allclose(got_losses, losses, rtol=1e-6)
    assert_same(got, values)
    assert stats.bytes_pulled / stats.steps > 0.9 * WHOLE


@pytest.mark.daily(2)
@pytest.mark.parametrize("mode", [None, "fill", "clip"])
def test_look_ups_outside_of_the_table_are_what_jax_makes_of_them(fake_ray, mode):
    ids = np.array([3, -1, ROWS, ROWS + 5, -ROWS - 1, 3], np.int32)
    values = np.random.default_rng(0).standard_normal((ROWS, DIMENSIONS)).astype(np.float32)

    def step_of(table):
        def step(ids):
            def loss_fn():
                rows = jnp.take(table.value, ids, axis=0, mode=mode)
                return jnp.sum(jnp.nan_to_num(rows) ** 2), rows

            (_, rows), (gradient,) = rx.value_and_grad(loss_fn, [table], has_aux=True)()
            table.assign(table.value - 0.1 * gradient)
            return rows

        return step

    alone = rx.Variable(values)
    wanted = rx.function(step_of(alone))(ids)
    with strategy_of(1, 2, max_staleness=0, variable_partitioner=rx.FixedShardsPartitioner(2)) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            table = rx.Variable(values)
        got = coordinator.schedule(step_of(table), args=(ids,)).fetch()
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_allclose(table.numpy(), alone.numpy(), rtol=1e-6)
        assert coordinator.stats().bytes_pulled < 0.1 * WHOLE


def test_two_tables_with_the_same_ids_and_several_look_ups_in_one(fake_ray):
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((ROWS, DIMENSIONS)).astype(np.float32) for _ in range(2))

    def step_of(one, two):
        def step(a, b):
            def loss_fn():
                left = jnp.take(one.value, a, axis=0) * jnp.take(two.value, a, axis=0)
                return jnp.sum(left) + jnp.sum(jnp.take(one.value, b, axis=0).astype(jnp.bfloat16).astype(jnp.float32))

            gradients = rx.grad(loss_fn, [one, two])()
            for table, gradient in zip([one, two], gradients, strict=True):
                table.assign_sub(0.1 * gradient)
            return gradients is not None

        return step

    ids = [rng.integers(0, ROWS, (2, 5)) for _ in range(3)]
    alone = rx.Variable(first), rx.Variable(second)
    for a, b in itertools.pairwise(ids):
        rx.function(step_of(*alone))(a, b)
    with strategy_of(1, 2, max_staleness=0) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            tables = rx.Variable(first), rx.Variable(second)
        step = step_of(*tables)
        for a, b in itertools.pairwise(ids):
            coordinator.schedule(step, args=(a, b))
        coordinator.join()
        for table, wanted in zip(tables, alone, strict=True):
            np.testing.assert_allclose(table.numpy(), wanted.numpy(), rtol=1e-6)
        assert coordinator.stats().bytes_pushed < 0.1 * WHOLE


def test_a_table_that_is_not_trained_is_looked_up_too(fake_ray):
    with strategy_of(1, 2) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        values = np.random.default_rng(0).standard_normal((ROWS, DIMENSIONS)).astype(np.float32)
        with strategy.scope():
            table = rx.Variable(values)
        rows = coordinator.schedule(lambda ids: table.value[ids], args=(np.array([5, 1, 5]),)).fetch()
        np.testing.assert_array_equal(rows, values[[5, 1, 5]])
        assert coordinator.stats().bytes_pulled == 2 * DIMENSIONS * 4
