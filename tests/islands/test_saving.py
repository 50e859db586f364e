"""Checkpoints of islands, in the middle of a round too: the training goes on bit for bit."""

import functools

import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError
from tests.islands.test_strategy import BATCHES, Training
from tests.islands.threads import run_islands

OWN = BATCHES[:20]


def training_of(strategy):
    import keras

    class WithMomentum(Training):
        def __init__(self, strategy):
            super().__init__(strategy)
            with strategy.scope():
                self.optimizer = keras.optimizers.SGD(0.02, momentum=0.8)
                self.kernel = keras.Variable(np.ones((5, 1), "float32"), name="kernel")
                self.optimizer.build([self.kernel])

        def step(self, batch):
            x, y = batch

            def loss():
                return rx.compute_average_loss(((x @ self.kernel - y) ** 2)[:, 0], global_batch_size=len(x))

            value, grads = rx.value_and_grad(loss, [self.kernel])()
            self.optimizer.apply_gradients(zip(grads, [self.kernel], strict=True))
            return value + super().step(batch)

        def values(self):
            return [*super().values(), np.asarray(self.kernel), *map(np.asarray, self.optimizer.variables)]

    return WithMomentum(strategy)


def parts(training):
    kept = {"w": training.w, "b": training.b, "rows": training.rows, "kernel": training.kernel}
    return rx.Checkpoint(**kept, optimizer=training.optimizer, strategy=training.strategy)


def go_on(training, steps):
    done = training.strategy.steps
    for batch in OWN[done : done + steps]:
        training.train(batch)


@pytest.mark.daily(2)
@pytest.mark.parametrize("steps", [5, 8, 3])
@pytest.mark.parametrize(
    "make", [functools.partial(rx.DiLoCoStrategy, 4), functools.partial(rx.DiLoCoStrategy, 4, fragments=2)]
)
def test_a_training_goes_on_bit_for_bit(tmp_path, steps, make):
    def whole(strategy):
        training = training_of(strategy)
        go_on(training, steps)
        path = parts(training).write(tmp_path / f"{steps}-{strategy.island_index}")
        go_on(training, 14 - steps)
        strategy.synchronize()
        return training.values(), float(training.rows.numpy()), path

    def restored(strategy):
        training = training_of(strategy)
        parts(training).restore(tmp_path / f"{steps}-{strategy.island_index}")
        go_on(training, 14 - steps)
        strategy.synchronize()
        return training.values(), float(training.rows.numpy()), strategy.steps

    for (values, rows, _), (again, rows_again, made) in zip(
        run_islands(whole, make), run_islands(restored, make), strict=True
    ):
        assert (rows_again, made) == (rows, 14)
        for a, b in zip(values, again, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_island_that_was_restored_from_an_older_checkpoint_takes_the_values_of_the_others(tmp_path):
    def whole(strategy):
        training = training_of(strategy)
        for steps in (4, 8):
            go_on(training, 4)
            parts(training).write(tmp_path / f"{steps}-{strategy.island_index}")

    def restored(strategy):
        training = training_of(strategy)
        parts(training).restore(tmp_path / f"{4 if strategy.island_index else 8}-{strategy.island_index}")
        go_on(training, 4)
        strategy.synchronize()
        return training.w.numpy(), strategy.steps

    make = functools.partial(rx.DiLoCoStrategy, 4)
    run_islands(whole, make)
    (one, steps), (other, other_steps) = run_islands(restored, make)
    assert (one == other).all()
    assert steps == other_steps == 12


def test_without_the_strategy_a_checkpoint_in_a_round_is_refused_and_other_rounds_too(tmp_path):
    def body(strategy):
        training = training_of(strategy)
        go_on(training, 1)
        with pytest.raises(rx.errors.IslandDivergenceError):
            rx.Checkpoint(w=training.w).write(tmp_path / f"no-{strategy.island_index}")
        parts(training).write(tmp_path / f"yes-{strategy.island_index}")

    run_islands(body, functools.partial(rx.LocalSGDStrategy, 3))

    def other(strategy):
        with pytest.raises(rx.errors.CheckpointError, match="every=3"):
            parts(training_of(strategy)).restore(tmp_path / f"yes-{strategy.island_index}")
        with pytest.raises(ArgumentError, match="every=3"):
            strategy.set_state({"every": 3, "fragments": 1})

    run_islands(other, functools.partial(rx.LocalSGDStrategy, 4))
