"""Functions on parameter servers that are no training steps, faults, and variables between steps."""

from __future__ import annotations

import gc
import time

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import ray

import replicax as rx
from replicax.errors import CancelledError, ContextError, ProgramError, VariableError
from tests.parameter_server.compiling.test_exported_programs import batches
from tests.parameter_server.fakes import kill_worker, strategy_of

pytestmark = pytest.mark.usefixtures("fake_ray")


# What is no training.


def made(strategy, *values):
    with strategy.scope():
        return [rx.Variable(np.asarray(value, np.float32), name=f"w{i}") for i, value in enumerate(values)]


def test_host_callbacks_are_refused_with_the_reason():
    with strategy_of() as strategy:
        (w,) = made(strategy, 1.0)
        coordinator = rx.coordinator.ClusterCoordinator(strategy)

        def prints():
            jax.debug.print("w is {}", w.value)
            return w.value

        def calls():
            return jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct((), np.float32), w.value)

        for fn in (prints, calls):
            with pytest.raises(
                ProgramError, match=rf"'{fn.__name__}' cannot be sent.*Host callbacks.*jax\.debug\.print"
            ):
                coordinator.schedule(fn)


def test_variables_of_others_are_refused():
    stranger = rx.Variable(1.0, name="stranger")
    with strategy_of() as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with pytest.raises(VariableError, match=r"'stranger' was not made in the scope"):
            coordinator.schedule(lambda: stranger.value)


def test_assigning_on_the_coordinator_between_steps():
    with strategy_of(workers=2, servers=2) as strategy:
        (w,) = made(strategy, [1.0, 2.0])
        coordinator = rx.coordinator.ClusterCoordinator(strategy)

        def double():
            w.assign(2 * w.value)

        coordinator.schedule(double)
        coordinator.join(20)
        np.testing.assert_array_equal(w.numpy(), [2, 4])
        w.assign([10.0, 20.0])
        np.testing.assert_array_equal(w.numpy(), [10, 20])
        coordinator.schedule(double)
        coordinator.join(20)
        np.testing.assert_array_equal(w.numpy(), [20, 40])


def test_reading_outside_of_a_program_gets_the_newest_value_even_in_a_gradient():
    with strategy_of(servers=2) as strategy:
        w, scale = made(strategy, [1.0, 2.0], 1.0)
        coordinator = rx.coordinator.ClusterCoordinator(strategy)

        def step():
            scale.assign_add(2.0)
            w.assign_add([1.0, 1.0])

        coordinator.schedule(step)
        coordinator.join(20)
        loss, (gradient,) = rx.value_and_grad(lambda: jnp.sum(w.value * scale.value), [w])()
        assert float(loss) == 15.0
        np.testing.assert_array_equal(gradient, [3, 3])


def test_what_every_server_copies_is_the_same_everywhere_after_another_function_has_read_it():
    with strategy_of(workers=1, servers=2, max_staleness=0) as strategy:
        (rate, *weights) = made(strategy, 0.5, [1.0, 1.0], [1.0, 1.0])
        coordinator = rx.coordinator.ClusterCoordinator(strategy)

        def step():
            _, gradients = rx.value_and_grad(lambda: sum(jnp.sum(w.value) for w in weights), weights)()
            for w, gradient in zip(weights, gradients, strict=True):
                w.assign_sub(rate.value * gradient)

        first = coordinator.schedule(lambda: rate.value)
        coordinator.join(20)
        coordinator.schedule(step)
        coordinator.join(20)
        rate.assign(1.0)
        coordinator.schedule(step)
        coordinator.join(20)
        assert float(first.fetch()) == 0.5
        for w in weights:
            np.testing.assert_array_equal(w.numpy(), [-0.5, -0.5])


def test_an_error_of_the_data_comes_out_of_join_and_training_goes_on():
    with strategy_of(workers=1) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(lambda: batches(0, (4, 4))))

        def step(it):
            return next(it)[0].sum()

        values = [coordinator.schedule(step, args=(iterator,)) for _ in range(2)]
        coordinator.join(20)
        values.append(coordinator.schedule(step, args=(iterator,)))
        with pytest.raises(rx.errors.EndOfDataError, match="no more batches"):
            coordinator.join(20)
        coordinator.join(20)
        assert coordinator.done()
        again = iter(coordinator.create_per_worker_dataset(lambda: batches(0, (4, 4))))
        assert float(coordinator.schedule(step, args=(again,)).fetch(20)) in [float(v.fetch()) for v in values[:2]]


def test_arguments_that_are_no_tuple_are_refused():
    with strategy_of() as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(batches))
        with pytest.raises(rx.errors.ArgumentError, match=r"got PerWorkerIterator. One: args=\(x,\)"):
            coordinator.schedule(lambda it: next(it), args=iterator)


def test_a_lost_worker_is_replaced_and_nothing_is_applied_twice():
    with strategy_of(workers=2, servers=2) as strategy:
        (count,) = made(strategy, 0.0)
        coordinator = rx.coordinator.ClusterCoordinator(strategy)

        def step(x):
            count.assign_add(x)

        coordinator.schedule(step, args=(np.float32(0),)).fetch(60)
        for i in range(60):
            coordinator.schedule(step, args=(np.float32(1),))
            if i in (20, 40):
                kill_worker(i // 20 - 1)
        coordinator.join(60)
        assert float(count.numpy()) == 60
        deadline = time.monotonic() + 20  # An idle one is missed when it is asked for a sign of life.
        while [worker.restarts for worker in coordinator.stats().workers] != [1, 1]:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_what_goes_after_the_end_disturbs_nobody(monkeypatch):
    with strategy_of() as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(batches))
    put: list[object] = []
    monkeypatch.setattr(ray, "put", put.append)
    id = iterator._id
    del iterator  # Now nobody refers to it any more.
    gc.collect()
    assert id in [note.provided for note in coordinator._objects._unused.take()]
    assert put == []


def test_after_closing_nothing_can_be_scheduled():
    with strategy_of() as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        value = coordinator.schedule(lambda: jnp.ones(()))
        coordinator.join(20)
    assert float(value.fetch()) == 1.0
    with pytest.raises((ContextError, CancelledError)):
        coordinator.schedule(lambda: jnp.ones(()))


def test_a_cut_variable_takes_its_rows_of_constants(fake_ray):
    partitioner = rx.FixedShardsPartitioner(2)
    with strategy_of(1, 2, variable_partitioner=partitioner) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            seeds, reset = keras.random.SeedGenerator(3), rx.Variable(np.ones(5, np.float32))

        def step():
            drawn = keras.random.uniform((2,), seed=seeds)
            reset.assign(np.arange(5, dtype=np.float32))
            return drawn

        drawn = [coordinator.schedule(step).fetch() for _ in range(2)]
        assert isinstance(seeds.state, rx.ShardedVariable)
        assert not np.array_equal(*drawn)
        np.testing.assert_array_equal(reset.numpy(), np.arange(5))
        alone = keras.random.SeedGenerator(3)
        np.testing.assert_array_equal(drawn, [keras.random.uniform((2,), seed=alone) for _ in range(2)])
        np.testing.assert_array_equal(seeds.state.value, alone.state.value)


@pytest.mark.nightly
def test_programs_of_functions_that_are_gone_are_dropped(fake_ray):
    with strategy_of(1, 1) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            total = rx.Variable(0.0)
        for _ in range(3):
            coordinator.schedule(lambda: total.assign_add(1.0)).fetch()
            gc.collect()
        coordinator.schedule(lambda: total.value).fetch()
        assert total.numpy() == 3
        assert len(strategy.servers._programs[0]) <= 2


def test_what_is_scheduled_after_join_sees_everything_before_it(fake_ray):
    with strategy_of(3, 2) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            total = rx.Variable(np.zeros(3, np.float32))
        add, read = rx.function(lambda: total.assign_add(jnp.ones(3))), rx.function(lambda: total.value)
        for count in range(1, 6):
            coordinator.schedule(add)
            coordinator.join()
            values = coordinator.fetch([coordinator.schedule(read) for _ in range(6)])
            np.testing.assert_array_equal(values, np.full((6, 3), count))
