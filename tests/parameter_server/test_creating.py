"""Large variables are made on the servers: each computes its own rows, and the numbers are those of one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.parameter_server.actors.created_rows import CreatedRows
from replicax.parameter_server.variables.remote import home_of
from tests.parameter_server.fakes import strategy_of

ROWS, DIMENSIONS = 300_000, 16

INITIALIZERS = {
    "uniform": lambda: keras.initializers.RandomUniform(seed=3),
    "normal": lambda: keras.initializers.RandomNormal(seed=3),
    "scaled": lambda: keras.initializers.VarianceScaling(mode="fan_out", seed=3),
    "ones": lambda: keras.initializers.Ones(),
}


@pytest.fixture
def computed(monkeypatch):
    """The bounds of what was computed, anywhere."""
    found = []
    compute = CreatedRows.compute

    def counted(self):
        found.append(self.bounds)
        return compute(self)

    monkeypatch.setattr(CreatedRows, "compute", counted)
    return found


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", INITIALIZERS)
def test_each_server_computes_its_own_rows(fake_ray, computed, name):
    with strategy_of(1, 2, variable_partitioner=rx.FixedShardsPartitioner(3)) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            table = keras.Variable(INITIALIZERS[name](), (ROWS, DIMENSIONS))
        assert home_of(table).read().shape == (ROWS, DIMENSIONS)
        computed.clear()
        rows = coordinator.schedule(lambda ids: table.value[ids], args=(np.array([5, ROWS - 1]),)).fetch()
        assert sorted(computed) == [(0, 100_000), (100_000, 200_000), (200_000, ROWS)]
        wanted = np.asarray(INITIALIZERS[name]()((ROWS, DIMENSIONS)))
        np.testing.assert_allclose(rows, wanted[[5, -1]], rtol=1e-6)
        np.testing.assert_allclose(np.asarray(table), wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.nightly
def test_training_from_created_values_is_that_of_one_device(fake_ray, computed):
    def trained(strategy, schedule):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            table = keras.Variable(INITIALIZERS["normal"](), (ROWS, DIMENSIONS))
            optimizer = keras.optimizers.Adagrad(0.1)
            optimizer.build([table])

        def step(ids):
            loss, gradients = rx.value_and_grad(lambda: (table.value[ids] ** 2).sum(), [table])()
            optimizer.apply_gradients(zip(gradients, [table], strict=True))
            return loss

        for seed in range(3):
            schedule(step, np.random.default_rng(seed).integers(0, 50, 20))
        return table, optimizer

    alone, _ = trained(rx.OneDeviceStrategy("cpu:0"), lambda step, ids: rx.function(step)(ids))
    with strategy_of(1, 2, max_staleness=0, variable_partitioner=rx.FixedShardsPartitioner(2)) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        table, optimizer = trained(strategy, lambda step, ids: coordinator.schedule(step, args=(ids,)).fetch())
        assert sorted(computed) == [(0, ROWS // 2)] * 2 + [(ROWS // 2, ROWS)] * 2  # the table and its accumulator
        np.testing.assert_allclose(np.asarray(table), np.asarray(alone), rtol=1e-6, atol=1e-8)
        assert np.asarray(optimizer.variables[-1]).shape == (ROWS, DIMENSIONS)


def test_a_value_that_is_assigned_before_the_first_step_counts(fake_ray, computed):
    with strategy_of(1, 2) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            table = keras.Variable(INITIALIZERS["normal"](), (ROWS, DIMENSIONS))
        table.assign(np.full((ROWS, DIMENSIONS), 2.0, np.float32))
        rows = coordinator.schedule(lambda ids: table.value[ids], args=(np.array([7]),)).fetch()
        np.testing.assert_array_equal(rows, 2.0)
        assert computed == []


def test_an_initializer_that_mixes_rows_is_computed_here(fake_ray, computed):
    with strategy_of(1, 2, variable_partitioner=rx.FixedShardsPartitioner(2)) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            table = keras.Variable(keras.initializers.Orthogonal(seed=0), (ROWS, 16))
        rows = coordinator.schedule(lambda ids: table.value[ids], args=(np.array([7]),)).fetch()
        wanted = np.asarray(keras.initializers.Orthogonal(seed=0)((ROWS, 16)))[7]
        np.testing.assert_allclose(rows[0], wanted, rtol=1e-5)
        assert computed == []
