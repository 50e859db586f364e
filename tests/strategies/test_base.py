"""What every strategy checks, and how it combines values."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import replicax as rx
from replicax.errors import ArgumentError, ContextError, ReduceError, ReplicaShapeError

STRATEGIES = {
    "default": rx.get_strategy,
    "one device": lambda: rx.OneDeviceStrategy("cpu:0"),
    "mirrored 2": lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"]),
}


@pytest.fixture(params=STRATEGIES)
def any_strategy(request):
    return STRATEGIES[request.param]()


# Workers.


def test_alone_there_is_one_worker_and_nobody_to_wait_for(any_strategy):
    assert (any_strategy.is_chief, any_strategy.worker_index, any_strategy.num_workers) == (True, 0, 1)
    assert any_strategy.barrier() is None
    assert any_strategy.barrier("again") is None
    with pytest.raises(ArgumentError, match="`name` is a string, got 3"):
        any_strategy.barrier(3)


def test_a_barrier_is_not_for_steps():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with pytest.raises(ContextError, match=r"strategy\.barrier was called inside strategy\.run"):
        strategy.run(strategy.barrier)


# run.


@pytest.mark.parametrize("fn", [None, 3, "step", jnp.ones(2)], ids=repr)
def test_run_and_update_need_a_callable(any_strategy, fn):
    with pytest.raises(ArgumentError, match="callable"):
        any_strategy.run(fn)
    with pytest.raises(ArgumentError, match="callable"):
        any_strategy.update(rx.Variable(1.0), fn)


@pytest.mark.parametrize("args", [1.0, "abc", {"x": 1}, np.ones(2), None], ids=repr)
def test_args_is_a_list_or_tuple(any_strategy, args):
    with pytest.raises(ArgumentError, match=r"list or tuple.*\(x,\)"):
        any_strategy.run(lambda *args: args, args=args)


def test_args_and_kwargs_are_optional(any_strategy):
    assert any_strategy.run(lambda: 5) == 5
    assert any_strategy.run(lambda a, b: (a, b), args=["a"], kwargs={"b": "b"}) == ("a", "b")
    assert any_strategy.run(lambda: 5, (), None) == 5


def test_an_error_in_the_function_comes_out_as_it_is(any_strategy):
    def fail():
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        any_strategy.run(fail)
    assert not rx.has_strategy()


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda strategy: strategy.run(lambda: None), "replica context"),
        (lambda strategy: strategy.reduce("sum", 1.0), "all_reduce"),
        (lambda strategy: strategy.gather(1.0), "all_gather"),
        (lambda strategy: strategy.scope().__enter__(), "scope"),
    ],
    ids=["run", "reduce", "gather", "scope"],
)
def test_cross_replica_calls_are_refused_inside_run(two, call, hint):
    with pytest.raises(ContextError, match=hint):
        two.run(lambda: call(two))
    assert not rx.has_strategy()


@pytest.mark.parametrize(
    "call",
    [
        lambda strategy: strategy.run(lambda: None),
        lambda strategy: strategy.reduce("mean", 1.0),
        lambda strategy: strategy.gather(1.0),
        lambda strategy: strategy.update(rx.Variable(1.0), lambda v: None),
        lambda strategy: strategy.scope().__enter__(),
    ],
    ids=["run", "reduce", "gather", "update", "scope"],
)
def test_scopes_of_two_strategies_do_not_mix(mirrored, two, call):
    with mirrored(3).scope(), pytest.raises(ContextError, match=r"cpu:2"):
        call(two)
    assert not rx.has_strategy()


def test_a_scope_may_be_entered_again(two):
    with two.scope() as outer, two.scope() as inner:
        assert outer is inner is two is rx.get_strategy()
    assert not rx.has_strategy()


def test_there_is_one_strategy_object_however_it_is_copied(any_strategy):
    """Variables belong to one strategy object: a copy would refuse them all."""
    with pytest.raises(ContextError, match="copied"):
        copy.copy(any_strategy)
    assert copy.deepcopy({"strategy": any_strategy})["strategy"] is any_strategy


# reduce.


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(0, 3), min_size=2, max_size=2).filter(sum),
    op=st.sampled_from(["sum", "mean"]),
    seed=st.integers(0, 9),
)
def test_reducing_along_rows_is_exact_however_they_are_split(mirrored, per_replica, sizes, op, seed):
    rows = np.random.default_rng(seed).normal(size=(sum(sizes), 2)).astype("float32")
    value = per_replica(mirrored(2), *np.split(rows, [sizes[0]]))
    expected = getattr(np, op)(rows, axis=0)
    np.testing.assert_allclose(mirrored(2).reduce(op, value, axis=0), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "axis", "expected"),
    [
        ("sum", None, [4.0, 9.0]),
        ("MEAN", None, [2.0, 4.5]),
        (rx.ReduceOp.SUM, 0, 13.0),
        ("mean", 0, 3.25),
        ("mean", -1, 3.25),
        ("mean", (0,), 3.25),
    ],
)
@pytest.mark.parametrize("inside_function", [False, True])
def test_reduce_combines_replicas_and_then_the_axis(two, per_replica, op, axis, expected, inside_function):
    value = per_replica(two, [1.0, 2.0], [3.0, 7.0])
    reduce = lambda value: two.reduce(op, value, axis=axis)  # noqa: E731
    result = (rx.function(reduce) if inside_function else reduce)(value)
    np.testing.assert_allclose(result, expected)
    assert isinstance(result, rx.Mirrored)


def test_the_true_mean_over_uneven_replicas(two, per_replica):
    value = per_replica(two, [4.0, 5.0], [6.0])
    assert float(two.reduce("mean", value, axis=0)) == 5.0
    assert float(two.reduce("sum", value, axis=0)) == 15.0
    with pytest.raises(ReplicaShapeError, match="axis"):
        two.reduce("mean", value, axis=None)


def test_the_mean_of_integers_is_not_rounded(two, per_replica):
    np.testing.assert_array_equal(two.reduce("mean", per_replica(two, [1, 0], [1, 1]), axis=None), [1.0, 0.5])


def test_reduce_takes_a_nest(two, per_replica):
    value = {"a": per_replica(two, 1.0, 2.0), "b": (per_replica(two, [3.0], [4.0]),)}
    result = two.reduce("sum", value, axis=None)
    assert float(result["a"]) == 3.0
    np.testing.assert_array_equal(result["b"][0], [7.0])


@pytest.mark.parametrize(
    "make", [lambda strategy: 3.0, lambda strategy: strategy.replicate(3.0), lambda _: rx.Variable(3.0)]
)
def test_a_value_that_is_equal_on_all_replicas_has_a_mean_but_no_sum(two, make):
    value = make(two)
    assert float(two.reduce("mean", value, axis=None)) == 3.0
    with pytest.raises(ReduceError, match="multiply it by 2"):
        two.reduce("sum", value, axis=None)


def test_along_an_axis_a_plain_value_counts_on_every_replica(two):
    value = jnp.array([1.0, 2.0])
    assert float(two.reduce("sum", value, axis=0)) == 6.0
    assert float(two.reduce("mean", value, axis=0)) == 1.5


@pytest.mark.parametrize("strategy", ["default", "one device"])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_one_replica_reduces_to_the_value_itself(strategy, op):
    value = jnp.ones(3)
    assert STRATEGIES[strategy]().reduce(op, value, axis=None) is value
    assert float(STRATEGIES[strategy]().reduce(op, value, axis=0)) == (3.0 if op == "sum" else 1.0)


@pytest.mark.parametrize("op", ["max", "", None, 3])
def test_an_unknown_op_is_refused(any_strategy, op):
    with pytest.raises(ReduceError, match="'sum'"):
        any_strategy.reduce(op, jnp.ones(2), axis=0)


@pytest.mark.parametrize("axis", [1, -2, "0", 0.5, (0, 0)])
def test_a_bad_axis_is_refused(two, per_replica, axis):
    for value in (per_replica(two, [1.0], [2.0]), per_replica(two, [1.0], [2.0, 3.0]), jnp.ones(1)):
        with pytest.raises(ReduceError, match="axis"):
            two.reduce("mean", value, axis=axis)


def test_reduce_passes_nan_through(two, per_replica):
    assert np.isnan(two.reduce("mean", per_replica(two, 1.0, np.nan), axis=None))


# gather.


@pytest.mark.parametrize(
    ("components", "axis", "expected"),
    [
        ([[[1, 2]], [[3, 4]]], 0, [[1, 2], [3, 4]]),
        ([[[1, 2]], [[3, 4]]], -1, [[1, 2, 3, 4]]),
        ([[[1, 2]], [[1, 2], [3, 4]]], 0, [[1, 2], [1, 2], [3, 4]]),
        ([[1], [2]], 0, [1, 2]),
    ],
    ids=str,
)
def test_gather_concatenates_in_replica_order(two, per_replica, components, axis, expected):
    result = two.gather(per_replica(two, *components), axis=axis)
    np.testing.assert_array_equal(result, expected)


def test_gather_takes_a_nest_and_leaves_plain_values_alone(two, per_replica):
    plain = jnp.ones(3)
    result = two.gather({"a": per_replica(two, [1], [2]), "b": plain, "c": "text"}, axis=0)
    np.testing.assert_array_equal(result["a"], [1, 2])
    assert result["b"] is plain
    assert result["c"] == "text"


def test_gather_needs_a_dimension_to_gather_along(two, per_replica):
    with pytest.raises(ReduceError):
        two.gather(per_replica(two, 1.0, 2.0), axis=0)
    with pytest.raises(ReplicaShapeError, match="axis 0"):
        two.gather(per_replica(two, [[1, 2]], [[1, 2, 3]]), axis=0)


def test_gather_inside_a_function(two, per_replica):
    gather = rx.function(lambda x: two.gather(two.run(lambda x: 2 * x, args=(x,)), axis=0))
    np.testing.assert_array_equal(gather(per_replica(two, [1, 2], [3, 4])), [2, 4, 6, 8])


# update.


def test_update_runs_in_cross_replica_context_for_each_copy(two):
    with two.scope():
        v = rx.Variable(10.0)
    seen = two.update(v, lambda v: (rx.in_cross_replica_context(), rx.get_replica_context(), rx.get_strategy() is two))
    assert seen == (True, None, True)
    result = two.update(v, lambda v, x, *, y: v.assign_add(x * y), args=(2.0,), kwargs={"y": 3.0})
    assert float(result) == float(v.value) == 16.0
    assert isinstance(result, rx.Mirrored)
    copies = two.update(v, lambda v, x: v.assign(x), args=(5.0,), group=False)
    assert [float(copy) for copy in copies] == [5.0, 5.0]


def test_update_hands_each_component_of_an_on_read_variable_its_own_argument(two, per_replica):
    with two.scope():
        v = rx.Variable(1.0, synchronization="on_read", aggregation="sum")
    results = two.update(v, lambda v, x: v.assign_add(x), args=(per_replica(two, 1.0, 2.0),), group=False)
    assert [float(result) for result in results] == [2.0, 3.0]
    assert float(v.value) == 5.0


@pytest.mark.parametrize("aggregation", ["none", "sum"])
def test_update_does_not_let_the_copies_of_a_mirrored_variable_drift_apart(two, per_replica, aggregation):
    with two.scope():
        v = rx.Variable(1.0, aggregation=aggregation)
    with pytest.raises(rx.ReplicaDivergenceError):
        two.update(v, lambda v, x: v.assign_add(x), args=(per_replica(two, 1.0, 2.0),))
    assert float(v.value) == 1.0


def test_update_inside_a_function_and_of_one_replica(two):
    for strategy in (two, rx.OneDeviceStrategy("cpu:0"), rx.get_strategy()):
        with strategy.scope():
            v = rx.Variable(1.0)
        add = rx.function(lambda s=strategy, v=v: s.update(v, lambda v, x: v.assign_add(x), args=(4.0,)))
        assert float(add()) == 5.0
        assert float(v.value) == 5.0


def test_a_traced_value_is_no_mirrored_array_yet(two):
    assert rx.function(lambda x: isinstance(x, rx.Mirrored))(two.replicate(1.0)) is False
    assert jax.jit(lambda x: x)(two.replicate(1.0)).sharding.is_fully_replicated


def test_nests_of_different_structures_are_refused(two):
    with pytest.raises(ArgumentError, match="replica 1"):
        two.distribute_values_from_function(lambda c: [1] * (1 + c.replica_id_in_sync_group))


@pytest.mark.parametrize("value", ["x", np.array(["x"]), object()], ids=["string", "strings", "object"])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_only_numbers_are_combined_along_an_axis(two, op, value):
    with pytest.raises(ReduceError, match="Only numbers"):
        two.reduce(op, value, axis=0)


def test_what_is_computed_from_a_combined_value_counts_as_an_array_of_ones_own(two, per_replica):
    gathered = two.gather(per_replica(two, jnp.ones(2), jnp.ones(2)), axis=0)
    with pytest.raises(ReduceError, match="already"):
        two.reduce("sum", gathered, axis=0)
    assert float(two.reduce("sum", np.asarray(gathered), axis=0)) == 8.0
    with pytest.raises(ReduceError):
        two.reduce("sum", gathered * 1, axis=None)


def test_strategies_of_one_process_have_no_cluster_resolver(any_strategy):
    assert any_strategy.cluster_resolver is None
    assert rx.CentralStorageStrategy(["cpu:0"]).cluster_resolver is None
