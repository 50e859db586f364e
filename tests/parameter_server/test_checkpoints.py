"""Checkpoints of asynchronous training are those of the other strategies."""

from __future__ import annotations

import dataclasses
import threading
import time

import keras
import numpy as np
import pytest

import replicax as rx
import replicax.checkpoint.checkpoint as snapshot_module
from tests.parameter_server.fakes import strategy_of

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((8, 1)).astype(np.float32)


class Training:
    """A model with its optimizer, in the scope of a strategy."""

    def __init__(self, strategy, seed):
        keras.utils.set_random_seed(seed)
        with strategy.scope():
            self.model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.Adam(0.01)
            self.optimizer.build(self.model.trainable_variables)
        self.checkpoint = rx.Checkpoint(model=self.model, optimizer=self.optimizer)

    def step(self, x, y):
        variables = self.model.trainable_variables
        loss, gradients = rx.value_and_grad(lambda: ((self.model(x) - y) ** 2).mean(), variables, aggregation="mean")()
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def values(self):
        return [np.asarray(variable.value) for variable in [*self.model.variables, *self.optimizer.variables]]


def assert_same(one, other):
    assert any(np.abs(value).max() > 0 for value in one.values())
    for mine, his in zip(one.values(), other.values(), strict=True):
        np.testing.assert_allclose(mine, his, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("partitioner", [None, rx.FixedShardsPartitioner(2)], ids=["whole", "cut"])
def test_asynchronous_training_goes_on_in_step_and_the_reverse(fake_ray, tmp_path, partitioner):
    mirrored = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy_of(2, 2, max_staleness=0, variable_partitioner=partitioner) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        apart, together = Training(strategy, seed=0), Training(mirrored, seed=1)
        for _ in range(3):
            coordinator.schedule(apart.step, args=(X, Y))
        coordinator.join()
        apart.checkpoint.write(tmp_path / "apart")
        together.checkpoint.restore(tmp_path / "apart")
        assert_same(together, apart)
        assert int(together.optimizer.iterations) == 3

        together_step = rx.function(lambda x, y: mirrored.run(together.step, args=(x, y)))
        for _ in range(2):
            together_step(X, Y)
        together.checkpoint.write(tmp_path / "together")
        for _ in range(2):
            coordinator.schedule(apart.step, args=(X, Y))
        coordinator.join()
        assert_same(apart, together)

        coordinator.schedule(apart.step, args=(X, Y)).fetch()
        apart.checkpoint.restore(tmp_path / "together")
        assert_same(apart, together)
        coordinator.schedule(apart.step, args=(X, Y)).fetch()
        together_step(X, Y)
        assert_same(apart, together)


def test_a_manager_restores_what_a_lost_server_had(fake_ray, tmp_path):
    with strategy_of(1, 2) as strategy:
        training = Training(strategy, seed=0)
        with strategy.scope():
            counter = rx.Variable(0, name="counter")
        objects = {"model": training.model, "optimizer": training.optimizer, "counter": counter}
        manager = rx.CheckpointManager(tmp_path, objects=objects)
        coordinator = rx.coordinator.ClusterCoordinator(strategy, checkpoint_manager=manager)

        def step(x, y):
            counter.assign_add(1)
            return training.step(x, y)

        for _ in range(3):
            coordinator.schedule(step, args=(X, Y))
        coordinator.join()
        manager.save(3)
        manager.wait_until_finished()
        saved = training.values()
        coordinator.schedule(step, args=(X, Y)).fetch()
        strategy.servers.handles[0].actor.kill()
        strategy.servers.handles[1].actor.kill()
        for mine, before in zip(training.values(), saved, strict=True):  # Reading replaces the servers.
            np.testing.assert_array_equal(mine, before)
        assert int(counter.numpy()) == 3
        assert np.isfinite(coordinator.schedule(step, args=(X, Y)).fetch())
        assert int(counter.numpy()) == int(training.optimizer.iterations) == 4
        assert coordinator.stats().server_restarts == 2


def test_a_checkpoint_holds_one_moment_also_if_a_server_is_lost_while_it_is_written(fake_ray, tmp_path, monkeypatch):
    with strategy_of(1, 2, variable_placement=lambda variable: int(variable.name.removeprefix("v"))) as strategy:
        with strategy.scope():
            counts = [rx.Variable(0.0, name=f"v{i}") for i in range(2)]
        objects = dict(zip("ab", counts, strict=True))
        manager = rx.CheckpointManager(tmp_path, objects=objects)
        coordinator = rx.coordinator.ClusterCoordinator(strategy, checkpoint_manager=manager)

        def step(x):
            for count in counts:
                count.assign_add(x)

        def train(steps):
            for _ in range(steps):
                coordinator.schedule(step, args=(np.float32(1),))
            coordinator.join(60)

        train(3)
        manager.save(3)
        manager.wait_until_finished()
        train(4)
        read = []

        def saved_value(variable):
            value = original(variable)
            read.append(variable)
            if len(read) == 1:  # One is read as it was before; the other one is lost.
                strategy.servers.handles[1].actor.kill()
            return value

        original = snapshot_module.saved_value
        monkeypatch.setattr(snapshot_module, "saved_value", saved_value)
        manager.save(7)
        manager.wait_until_finished()
        for count in counts:
            count.assign(-1.0)
        manager.restore(7)
        assert [float(count.numpy()) for count in counts] == [3, 3]
        assert len(read) == 4


READERS = {
    "value": lambda counts: [float(count.numpy()) for count in counts],
    "program": lambda counts: [float(value) for value in rx.function(lambda: [count.value for count in counts])()],
    "assigning program": lambda counts: [
        float(value) for value in rx.function(lambda: [count.assign_add(0.0) for count in counts])()
    ],
    "assignment": lambda counts: [float(count.assign_add(0.0)) for count in counts],
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_who_reads_during_a_recovery_waits_for_it(fake_ray, tmp_path, read):
    with strategy_of(1, 2, variable_placement=lambda variable: int(variable.name.removeprefix("v"))) as strategy:
        with strategy.scope():
            counts = [rx.Variable(0.0, name=f"v{i}") for i in range(2)]
        here = rx.Variable(0.0, name="here")
        objects = {"a": counts[0], "b": counts[1], "here": here}
        manager = rx.CheckpointManager(tmp_path, objects=objects)
        coordinator = rx.coordinator.ClusterCoordinator(strategy, checkpoint_manager=manager)

        def step(x):
            for count in counts:
                count.assign_add(x)

        def train(steps):
            for _ in range(steps):
                coordinator.schedule(step, args=(np.float32(1),))
            coordinator.join(60)

        train(3)
        manager.save(3)
        manager.wait_until_finished()
        train(4)
        restore, begun = manager.restore_or_initialize, threading.Event()

        def slow_restore():
            begun.set()
            time.sleep(0.5)
            return restore()

        manager.restore_or_initialize = slow_restore
        strategy.servers.handles[1].actor.kill()  # It is idle, and missed by the next ping.
        assert begun.wait(20)
        assert read(counts) == [3, 3]
        train(2)
        assert [float(count.numpy()) for count in counts] == [5, 5]


def test_servers_may_be_lost_while_others_are_replaced(fake_ray, tmp_path):
    with strategy_of(1, 2, variable_placement=lambda variable: int(variable.name.removeprefix("v"))) as strategy:
        with strategy.scope():
            counts = [rx.Variable(0.0, name=f"v{i}") for i in range(2)]
        manager = rx.CheckpointManager(tmp_path, objects=dict(zip("ab", counts, strict=True)))
        coordinator = rx.coordinator.ClusterCoordinator(strategy, checkpoint_manager=manager)

        def step(x):
            for count in counts:
                count.assign_add(x)

        coordinator.schedule(step, args=(np.float32(1),)).fetch(60)
        manager.save(1)
        manager.wait_until_finished()
        restore, to_kill = manager.restore_or_initialize, [0, 1, 1]

        def restore_and_lose():
            step = restore()
            if to_kill:
                strategy.servers.handles[to_kill.pop()].actor.kill()
            return step

        manager.restore_or_initialize = restore_and_lose
        strategy.servers.handles[0].actor.kill()
        for _ in range(10):
            coordinator.schedule(step, args=(np.float32(1),))
        coordinator.join(120)
        assert to_kill == []
        assert [float(count.numpy()) for count in counts] == [11, 11]


def test_without_a_checkpoint_a_lost_server_ends_the_training(fake_ray):
    with strategy_of(1, 1) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        training = Training(strategy, seed=0)
        coordinator.schedule(training.step, args=(X, Y)).fetch()
        strategy.servers.handles[0].actor.kill()
        coordinator.schedule(training.step, args=(X, Y))
        with pytest.raises(rx.errors.ParameterServerLost, match="CheckpointManager"):
            coordinator.join(60)
        variable = strategy.variables()[0]
        value = np.zeros(variable.shape, "float32")
        for call in (
            lambda: coordinator.schedule(training.step, args=(X, Y)),
            coordinator.join,
            coordinator.done,
            lambda: np.asarray(variable),
            lambda: variable.assign(value),
        ):
            with pytest.raises(rx.errors.ParameterServerLost) as found:
                call()
            assert found.type is rx.errors.ParameterServerLost


def test_a_server_lost_before_the_first_save_is_told_to_be_saved_before(fake_ray, tmp_path):
    with strategy_of(1, 1) as strategy:
        with strategy.scope():
            count = rx.Variable(0.0, name="count")
        manager = rx.CheckpointManager(tmp_path, objects={"count": count})
        coordinator = rx.coordinator.ClusterCoordinator(strategy, checkpoint_manager=manager)
        coordinator.schedule(lambda: count.assign_add(1.0)).fetch(60)
        strategy.servers.handles[0].actor.kill()

        def train():
            coordinator.schedule(lambda: count.assign_add(1.0))
            coordinator.join(60)

        with pytest.raises(rx.errors.ParameterServerLost, match="save once before the first step") as found:
            train()
        assert "Give the" not in str(found.value)


def test_servers_that_do_not_come_back_end_training_in_time(fake_ray, tmp_path, monkeypatch):
    with strategy_of(1, 1) as strategy:
        with strategy.scope():
            count = rx.Variable(0.0, name="count")
        manager = rx.CheckpointManager(tmp_path, objects={"count": count})
        coordinator = rx.coordinator.ClusterCoordinator(strategy, checkpoint_manager=manager)
        coordinator.schedule(lambda: count.assign_add(1.0)).fetch(60)
        manager.save(1)
        manager.wait_until_finished()
        reached, go_on = [], threading.Event()

        def options(job, index):
            """Ray's head is out of reach, and whoever asks it stands."""
            if job == "ps":
                reached.append(index)
                go_on.wait(60)
            return {}

        monkeypatch.setattr(strategy.cluster, "actor_options", options)
        # Only now: a busy machine may need longer for the start.
        strategy.patience = strategy.servers.patience = strategy.patience._replace(start=0.2, stall=0.2)
        scheduler = coordinator._scheduler
        watch = dataclasses.replace(scheduler._state.watch, patience=strategy.patience)
        scheduler._state = scheduler._state._replace(watch=watch)
        strategy.servers.handles[0].actor.kill()
        found = "ps:0 could not be replaced, tried for 1 s.*the order to start"

        def train():
            coordinator.schedule(lambda: count.assign_add(1.0))
            coordinator.join(60)

        with pytest.raises(rx.errors.ParameterServerLost, match=found):
            train()
        assert 1 < len(reached) < 10
        go_on.set()
