"""What each worker has of its own: variables and values that steps change, and datasets that only workers read."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ContextError, ProgramError, VariableError
from tests.parameter_server.fakes import strategy_of


@pytest.fixture
def strategy(fake_ray):
    with strategy_of(2, 1) as strategy:
        yield strategy


@pytest.fixture
def coordinator(strategy):
    return rx.coordinator.ClusterCoordinator(strategy)


def of_each_worker(strategy, value=0.0, **options):
    with strategy.scope():
        return rx.Variable(value, per_worker_variable=True, name="own", **options)


def test_each_worker_has_a_copy_and_the_coordinator_one_more(strategy, coordinator):
    own = of_each_worker(strategy)
    with strategy.scope():
        total = rx.Variable(0.0)

    def step(amount):
        worker = rx.coordinator.get_current_worker_index()
        total.assign_add(amount)
        return worker, own.assign_add(amount), own.value

    found = [coordinator.schedule(step, args=(float(i),)) for i in range(20)]
    coordinator.join()
    expected = [0.0, 0.0]
    for worker, new, read in coordinator.fetch(found):
        expected[worker] = max(expected[worker], float(new))  # amounts are positive: the last one is the largest
        assert new == read
    np.testing.assert_array_equal(own.read_all(), expected)
    assert sum(expected) == total.numpy() == sum(range(20))
    assert own.numpy() == 0.0
    own.assign(5.0)
    assert own.numpy() == 5.0
    np.testing.assert_array_equal(own.read_all(), expected)
    assert not own.trainable


def test_steps_go_on_from_what_earlier_ones_left(strategy, coordinator):
    own = of_each_worker(strategy, np.zeros((2, 3), np.float32))

    @rx.function
    def step():
        own.scatter_add([0], 1.0)
        own.assign_add(own.value)

    for _ in range(6):
        coordinator.schedule(step)
    coordinator.join()
    rows = [value[0, 0] for value in own.read_all()]
    steps = [int(np.log2(row + 2)) - 1 for row in rows]  # x -> 2(x + 1), from 0
    assert sum(steps) == 6
    assert all((value[1] == 0).all() for value in own.read_all())


def test_the_strategys_run_uses_it_too(strategy, coordinator):
    own = of_each_worker(strategy, 1)
    coordinator.schedule(lambda: strategy.run(lambda: own.assign_add(1))).fetch()
    assert sorted(map(int, own.read_all())) == [1, 2]


def test_a_loss_may_read_it_but_not_assign_it(strategy, coordinator):
    own = of_each_worker(strategy, 3.0)
    with strategy.scope():
        weight = rx.Variable(2.0)

    def step(assigns):
        def loss():
            if assigns:
                own.assign_add(1.0)
            return own.value * weight.value**2

        (gradient,) = rx.grad(loss, [weight])()
        own.assign(gradient)
        return gradient

    assert coordinator.schedule(step, args=(False,)).fetch() == 12.0
    assert sorted(map(float, own.read_all())) == [3.0, 12.0]
    with pytest.raises(ProgramError, match="assign it afterwards"):
        coordinator.schedule(step, args=(True,))


def test_where_it_may_not_be(strategy, coordinator):
    own = of_each_worker(strategy)
    with pytest.raises(ArgumentError, match="without passing"):
        coordinator.schedule(lambda v: v.value, args=(own,))
    with pytest.raises(VariableError, match="read_all"):
        coordinator.schedule(lambda: own)
    with pytest.raises(VariableError, match="traced"):
        coordinator.schedule(functools.partial(of_each_worker, strategy))
    with pytest.raises(VariableError, match="trained"):
        of_each_worker(strategy, trainable=True)


def test_it_is_for_workers_of_this_strategy(mirrored):
    with pytest.raises(VariableError, match="ParameterServerStrategy"):
        rx.Variable(1.0, per_worker_variable=True)
    with mirrored(2).scope(), pytest.raises(VariableError, match="on_read"):
        rx.Variable(1.0, per_worker_variable=True)


def test_the_copies_need_a_coordinator(strategy):
    own = of_each_worker(strategy, 4)
    assert own.numpy() == 4
    with pytest.raises(ContextError, match="ClusterCoordinator"):
        own.read_all()
    rx.coordinator.ClusterCoordinator(strategy)
    assert [int(value) for value in own.read_all()] == [4, 4]


def test_a_resource_may_be_replaced_by_a_step(strategy, coordinator):
    counts = coordinator.create_per_worker_resource(lambda: {"steps": np.int32(0), "rows": np.zeros(2, np.float32)})

    def step():
        old = counts.value
        counts.assign({"steps": old["steps"] + 1, "rows": old["rows"] + 1})
        return counts.value["steps"]

    results = [coordinator.schedule(step) for _ in range(8)]
    coordinator.join()
    found = counts.fetch()
    assert sum(each["steps"] for each in found) == 8
    for each in found:
        np.testing.assert_array_equal(each["rows"], [each["steps"]] * 2)
    assert max(coordinator.fetch(results)) == max(each["steps"] for each in found)
    with pytest.raises(VariableError, match="shapes"):
        coordinator.schedule(lambda: counts.assign({"steps": jnp.int32(0), "rows": jnp.zeros(3)}))
    with pytest.raises(ContextError, match="scheduled"):
        counts.assign({"steps": 0, "rows": [0, 0]})


# Datasets.


def test_a_dataset_of_the_strategy_is_not_read_on_the_coordinator(strategy, coordinator):
    batches = [np.full(2, i, np.float32) for i in range(4)]
    datasets = [
        strategy.experimental_distribute_dataset(batches),
        strategy.distribute_datasets_from_function(lambda context: batches),
    ]
    for dataset in datasets:
        with pytest.raises(ContextError, match="create_per_worker_dataset"):
            next(iter(dataset))
        for made in (dataset, lambda dataset=dataset: dataset):
            iterator = iter(coordinator.create_per_worker_dataset(made))
            found = coordinator.schedule(lambda iterator: next(iterator), args=(iterator,)).fetch()
            np.testing.assert_array_equal(found, [0, 0])


@pytest.mark.parametrize("where", ["function", "iterator"])
def test_a_dataset_function_makes_no_variables(strategy, coordinator, where):
    def with_variable():
        rx.Variable(1.0)
        return [np.ones(2)]

    def later():
        yield np.ones(2)[: int(rx.Variable(1).value)]

    dataset = coordinator.create_per_worker_dataset(with_variable if where == "function" else later)

    def scheduled():
        coordinator.schedule(lambda iterator: next(iterator), args=(iter(dataset),))
        coordinator.join()

    with pytest.raises(VariableError, match="dataset function"):
        scheduled()
