"""Tables that a layer has marked: whatever their size and optimizer, a step changes the rows that it looks up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.parameter_server.variables.remote import home_of
from replicax.program.ir.jaxprs import marked_as_gradient
from replicax.tables import row_optimizer, updated_rows
from tests.parameter_server.fakes import strategy_of

ROWS, COLUMNS = 100, 4  # 1600 bytes: an unmarked variable of this size would be pulled completely

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
}


class ByHand:
    """What a layer of tables does in a step, without the layer."""

    spec: object = "a table"
    rows = ROWS

    def __init__(self, make_optimizer):
        self.optimizer = row_optimizer(make_optimizer())
        self.table = self._variable(keras.initializers.RandomNormal(seed=0))
        self.slots = {s.name: self._variable(keras.initializers.Constant(s.first_value)) for s in self.optimizer.slots}
        self.steps = keras.Variable(0, dtype="int32", trainable=False)

    def _variable(self, initializer):
        initializer.replicax_table = self.spec
        return keras.Variable(initializer, (self.rows, COLUMNS), trainable=False)

    def step(self, ids, targets):
        table = self.table.value
        loss, of_rows = jax.value_and_grad(lambda rows: jnp.sum((rows - targets) ** 2))(jnp.take(table, ids, axis=0))
        gradient = marked_as_gradient(jnp.zeros_like(table).at[ids].add(of_rows))
        step = self.steps.value + 1
        slots = {name: slot.value for name, slot in self.slots.items()}
        rate = self.optimizer.learning_rate(step)
        new, new_slots = updated_rows(self.optimizer, table, slots, gradient, step, rate)
        self.table.assign(new)
        self.steps.assign(step)
        for name, value in new_slots.items():
            self.slots[name].assign(value)
        return loss

    def values(self):
        return [np.asarray(each) for each in (self.table, *self.slots.values())]


def batches():
    rng = np.random.default_rng(0)
    for _ in range(4):
        yield rng.integers(0, ROWS, (5, 3)) // 3 * 3, rng.standard_normal((5, 3, COLUMNS)).astype(np.float32)


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_touched_rows_change_and_as_on_one_device(fake_ray, name):
    alone = ByHand(OPTIMIZERS[name])
    wanted = alone.values()
    for ids, targets in batches():
        before = alone.values()
        rx.function(alone.step)(ids, targets)
        touched = np.isin(np.arange(ROWS), ids)
        wanted = [np.where(touched[:, None], new, old) for new, old in zip(alone.values(), before, strict=True)]
        for variable, value in zip((alone.table, *alone.slots.values()), wanted, strict=True):
            variable.assign(value)
    with strategy_of(1, 2, max_staleness=0) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            served = ByHand(OPTIMIZERS[name])
        before = coordinator.stats()
        for ids, targets in batches():
            coordinator.schedule(served.step, args=(ids, targets)).fetch()
        assert len(home_of(served.table).bounds) == 2  # one part for each server, without a partitioner
        for got, value in zip(served.values(), wanted, strict=True):
            np.testing.assert_allclose(got, value, rtol=1e-6, atol=1e-7)
        rows = sum(len(np.unique(ids)) for ids, _ in batches())
        after = coordinator.stats()
        assert after.bytes_pulled - before.bytes_pulled <= rows * COLUMNS * 4 + 64
        assert (
            after.bytes_pushed - before.bytes_pushed <= rows * (COLUMNS + 2) * 4 + 64
        )  # ids with the gradients, and with the asking


def test_a_step_that_changes_other_rows_of_a_table_is_refused(fake_ray):
    with strategy_of(1, 2) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            served = ByHand(OPTIMIZERS["sgd"])

        def decay():
            served.table.assign(served.table.value * 0.9)

        def penalty():
            gradient = marked_as_gradient(2 * served.table.value)
            served.table.assign(served.table.value - 0.1 * gradient)

        for step in (decay, penalty):
            with pytest.raises(rx.errors.ProgramError, match="rows that it looks up"):
                coordinator.schedule(step)
