"""What a program does with the buffers of the variables that it updates in place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.runtime import stacked_sharding


@pytest.fixture(params=["no strategy", "one device", "two devices"])
def strategy(request, two):
    return {"no strategy": None, "one device": rx.OneDeviceStrategy("cpu:1"), "two devices": two}[request.param]


def variable(strategy, value=0.0):
    array = value + jnp.arange(512.0) if isinstance(value, float) else value
    if strategy is None:
        return rx.Variable(array)
    with strategy.scope():
        return rx.Variable(array)


def incrementing(*variables):
    @rx.function
    def increment():
        for v in variables:
            v.assign(v + 1)

    return increment


def first(array):
    return float(np.asarray(array)[0])


# Updating in place must not be seen through anything that the user holds.


def test_an_array_read_before_a_step_keeps_its_value(strategy):
    v = variable(strategy)
    increment = incrementing(v)
    before = v.value
    increment()
    between = v.value
    increment()
    assert (first(before), first(between), first(v)) == (0.0, 1.0, 2.0)


def test_a_numpy_array_read_before_a_step_keeps_its_value(strategy):
    v = variable(strategy)
    increment = incrementing(v)
    before = v.numpy()
    increment()
    increment()
    assert (first(before), first(v)) == (0.0, 2.0)


def test_the_components_read_before_a_step_keep_their_values(two):
    v = variable(two)
    increment = incrementing(v)
    before = two.local_results(v.value)
    increment()
    increment()
    assert [first(component) for component in before] == [0.0, 0.0]


def test_an_array_that_a_program_returned_keeps_its_value(strategy):
    v = variable(strategy)
    increment = incrementing(v)
    increment()
    read = rx.function(lambda: v.value)
    before = read()
    increment()
    increment()
    assert (first(before), first(v)) == (1.0, 3.0)


def test_an_array_that_an_assignment_returned_keeps_its_value(strategy):
    v = variable(strategy)
    increment = incrementing(v)
    before = v.assign_add(jnp.ones(512))
    increment()
    increment()
    assert (first(before), first(v)) == (1.0, 3.0)


@pytest.mark.parametrize("inside", [False, True])
def test_variables_assigned_from_each_other_are_updated_apart(strategy, inside):
    a, b = variable(strategy), variable(strategy, 5.0)
    copy = lambda: a.assign(b)  # noqa: E731
    (rx.function(copy) if inside else copy)()
    both, only_a = incrementing(a, b), incrementing(a)
    both()
    only_a()
    both()
    assert (first(a), first(b)) == (8.0, 7.0)


def test_one_array_assigned_to_two_variables_inside_a_program(strategy):
    a, b = variable(strategy), variable(strategy)

    @rx.function
    def assign_both(x):
        a.assign(x)
        b.assign(x)
        return x

    x = 3.0 + jnp.arange(512.0)
    returned = assign_both(x)
    incrementing(a)()
    incrementing(a, b)()
    assert (first(a), first(b), first(x), first(returned)) == (5.0, 4.0, 3.0, 3.0)


def test_an_array_assigned_to_a_variable_stays_the_users(strategy):
    v = variable(strategy)
    x = 3.0 + jnp.arange(512.0)
    v.assign(x)
    increment = incrementing(v)
    increment()
    increment()
    assert (first(x), first(v)) == (3.0, 5.0)


def test_the_initial_value_stays_the_users(strategy):
    x = 3.0 + jnp.arange(512.0)
    v = variable(strategy, x)
    increment = incrementing(v)
    increment()
    increment()
    assert (first(x), first(v)) == (3.0, 5.0)


def test_a_variable_that_is_only_read_is_not_touched(strategy):
    v, w = variable(strategy, 2.0), variable(strategy)
    step = rx.function(lambda: w.assign(w + v))
    step()
    before = v.value
    step()
    assert v.value is before
    assert first(w) == 4.0


def test_a_step_updates_in_place_when_nobody_holds_the_old_value():
    v = rx.Variable(jnp.zeros(4096))
    increment = incrementing(v)
    increment()
    address = v.value.unsafe_buffer_pointer()
    increment()
    assert v.value.unsafe_buffer_pointer() == address


# Fewer replicas: a partial batch.


def test_a_step_on_fewer_replicas_updates_every_copy(mirrored, per_replica):
    four, two = mirrored(4), mirrored(2)
    with four.scope():
        v = rx.Variable(0.0)
        seen = rx.Variable(0.0, synchronization="on_read", aggregation="sum")

    def step(x):
        replica = rx.get_replica_context()
        v.assign_add(replica.all_reduce("sum", x))
        seen.assign_add(x)
        return replica.num_replicas_in_sync, replica.all_reduce("sum", x)

    full, partial = per_replica(four, 1.0, 1.0, 1.0, 1.0), per_replica(two, 10.0, 20.0)
    kept = []
    for batch, replicas, total in [(full, 4, 4.0), (partial, 2, 30.0), (partial, 2, 30.0), (full, 4, 4.0)]:
        count, result = four.run(step, args=(batch,))
        assert (count, float(result)) == (replicas, total)
        assert len(result.sharding.device_set) == 4
        kept.append(v.value)
    assert [float(value) for value in kept] == [4.0, 34.0, 64.0, 68.0]
    assert [float(copy) for copy in four.local_results(v.value)] == [68.0] * 4
    assert [float(x) for x in four.run(lambda: seen.value).values] == [22.0, 42.0, 2.0, 2.0]
    assert float(seen.value) == 68.0


def test_a_step_on_one_of_several_replicas_keeps_per_replica_results_apart(mirrored):
    two, one = mirrored(2), mirrored(1)
    batch = rx.PerReplica(jax.device_put(jnp.array([7.0]), stacked_sharding(one.mesh)))
    result = two.run(lambda x: x + 1, args=(batch,))
    assert isinstance(result, rx.PerReplica)
    assert [float(component) for component in result.values] == [8.0]
    assert float(two.reduce("sum", result, axis=None)) == 8.0
