"""Whole steps, their halves composed in this process: the same as on one device."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError
from tests.parameter_server.fakes import strategy_of

BATCH, STEPS = 24, 6
pytestmark = pytest.mark.usefixtures("fake_ray")


def batches(seed=0, sizes=(BATCH,) * STEPS):
    rng = np.random.default_rng(seed)
    for size in sizes:
        yield rng.normal(size=(size, 10)).astype(np.float32), rng.integers(0, 5, size)


def clipped_by_global_norm():
    return keras.optimizers.Adam(1e-2, global_clipnorm=0.5)


class Linear:
    """A linear model, its momentum and a counter, and a step of its training."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.w = rx.Variable(np.zeros((10, 5), np.float32), name="w")
            self.momentum = rx.Variable(np.zeros((10, 5), np.float32), name="momentum")
            self.count = rx.Variable(0, name="count")

    def step(self, batch):
        x, y = batch

        def loss_fn():
            return jnp.mean((x @ self.w.value - jax.nn.one_hot(y, 5)) ** 2)

        loss, (gradient,) = rx.value_and_grad(loss_fn, [self.w])()
        self.count.assign_add(1)
        self.momentum.assign(0.9 * self.momentum.value + gradient)
        self.w.assign_sub(0.1 * self.momentum.value / jnp.sqrt(self.count.value.astype(jnp.float32)))
        return loss

    @property
    def state(self):
        return [np.asarray(v.value) for v in [self.w, self.momentum, self.count]]


class Training:
    """A perceptron with batch normalization and metrics, and a step of its training."""

    def __init__(self, strategy, make_optimizer):
        with strategy.scope():
            keras.utils.set_random_seed(0)
            self.model = keras.Sequential([
                keras.Input((10,)), keras.layers.Dense(12, activation="relu"), keras.layers.BatchNormalization(),
                keras.layers.Dense(5),
            ])  # fmt: skip
            self.optimizer = make_optimizer()
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()
            self.mean_loss = keras.metrics.Mean()
        self.strategy = strategy
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(self, batch):
        x, y = batch

        def loss_fn():
            logits = self.model(x, training=True)
            self.accuracy.update_state(y, logits)
            return rx.compute_average_loss(self.loss(y, logits), global_batch_size=BATCH)

        loss, gradients = rx.value_and_grad(loss_fn, self.model.trainable_variables)()
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.mean_loss.update_state(loss)
        return loss

    def step(self, batch):
        return self.strategy.reduce("sum", self.strategy.run(self.replica_step, args=(batch,)), axis=None)

    @property
    def state(self):
        metrics = [*self.accuracy.variables, *self.mean_loss.variables]
        return [np.asarray(v.value) for v in [*self.model.variables, *self.optimizer.variables, *metrics]]


@functools.cache
def on_one_device(make_optimizer):
    training = Training(rx.OneDeviceStrategy("cpu:0"), make_optimizer)
    step = rx.function(training.step)
    return [float(step(batch)) for batch in batches()], training.state


def on_servers(training, data=batches, steps=STEPS):
    coordinator = rx.coordinator.ClusterCoordinator(training.strategy)
    iterator = iter(coordinator.create_per_worker_dataset(data))

    def step(it):
        return training.step(next(it))

    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps)]
    coordinator.join(60)
    return [float(loss) for loss in coordinator.fetch(values)], training.state


def assert_same(ours, reference):
    np.testing.assert_allclose(ours[0], reference[0], rtol=1e-5)
    for a, b in zip(ours[1], reference[1], strict=True):
        assert np.linalg.norm(a - b) <= 2e-6 * np.linalg.norm(b)


@pytest.mark.parametrize(("servers", "shards"), [(1, 1), (2, 1), (2, 3)])
def test_one_worker_trains_like_one_device(servers, shards):
    partitioner = None if shards == 1 else rx.FixedShardsPartitioner(shards)
    with strategy_of(workers=1, servers=servers, max_staleness=0, variable_partitioner=partitioner) as strategy:
        ours = on_servers(Training(strategy, clipped_by_global_norm))
    assert_same(ours, on_one_device(clipped_by_global_norm))


@pytest.mark.daily(2)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_cutting_variables_changes_nothing(servers, shards):
    with strategy_of(servers=servers, max_staleness=0, variable_partitioner=rx.FixedShardsPartitioner(shards)) as s:
        ours = on_servers(Linear(s))
    reference = Linear(rx.OneDeviceStrategy("cpu:0"))
    step = rx.function(reference.step)
    assert_same(ours, ([float(step(batch)) for batch in batches()], reference.state))


def test_with_no_staleness_workers_take_turns_and_nothing_is_behind():
    with strategy_of(workers=3, max_staleness=0) as strategy:
        training = Linear(strategy)
        losses, _ = on_servers(training, lambda: batches(0, (BATCH,) * 9), steps=9)
        stats = strategy.coordinator.stats()
        assert stats.staleness == {0: 9}
        assert sum(worker.steps for worker in stats.workers) == 9
        assert int(training.count.value) == 9
        assert np.isfinite(losses).all()


@pytest.mark.parametrize("staleness", [None, 1])
def test_several_workers_train_asynchronously(staleness):
    def data():
        yield from batches(rx.coordinator.get_current_worker_index(), (BATCH,) * 100)

    with strategy_of(workers=2, max_staleness=staleness) as strategy:
        training = Linear(strategy)
        on_servers(training, data, steps=40)
        stats = strategy.coordinator.stats()
        assert stats.steps == 40
        assert int(training.count.value) == 40
        assert staleness is None or max(stats.staleness) <= staleness


def test_a_smaller_batch_gets_a_program_of_its_own():
    sizes = (BATCH, 7, BATCH, 7)
    with strategy_of(workers=1, servers=2, max_staleness=0) as strategy:
        ours = on_servers(Linear(strategy), lambda: batches(0, sizes), steps=4)
    reference = Linear(rx.OneDeviceStrategy("cpu:0"))
    step = rx.function(reference.step)
    assert_same(ours, ([float(step(batch)) for batch in batches(0, sizes)], reference.state))


# Updates that need a whole variable.


class Lamb(keras.optimizers.SGD):
    """The heart of LAMB: the update is as long as the weight."""

    def update_step(self, gradient, variable, learning_rate):
        rate = keras.ops.cast(learning_rate, variable.dtype)
        ratio = keras.ops.norm(variable) / (keras.ops.norm(gradient) + 1e-6)
        self.assign_sub(variable, rate * (ratio + 0.1) * gradient)


def lamb():
    return Lamb(1e-2)


def test_layerwise_rates_are_right_where_variables_are_whole():
    with strategy_of(workers=1, servers=2, max_staleness=0) as strategy:
        assert_same(on_servers(Training(strategy, lamb)), on_one_device(lamb))


def test_layerwise_rates_are_refused_where_variables_are_cut():
    with strategy_of(servers=2, variable_partitioner=rx.FixedShardsPartitioner(2)) as strategy:
        training = Training(strategy, lamb)
        with pytest.raises(ProgramError, match=r"(?s)is sharded over servers.*norm of a whole variable.*returns 1"):
            on_servers(training)
