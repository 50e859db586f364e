from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ContextError, ReduceError


@pytest.fixture
def x(two, per_replica):
    return per_replica(two, 1.0, 2.0)


def components(value):
    return [float(component) for component in value.values]


def replica():
    return rx.get_replica_context()


# all_reduce.


@pytest.mark.parametrize(("op", "expected"), [("sum", 3.0), ("mean", 1.5), (rx.ReduceOp.SUM, 3.0), ("MEAN", 1.5)])
def test_every_replica_gets_the_combined_value(two, x, op, expected):
    result = two.run(lambda x: replica().all_reduce(op, x), args=(x,))
    assert float(result) == expected
    assert isinstance(result, rx.Mirrored)


def test_all_reduce_takes_a_nest(two, x):
    result = two.run(lambda x: replica().all_reduce("sum", {"a": x, "b": (x * 10, [])}), args=(x,))
    assert (float(result["a"]), float(result["b"][0]), result["b"][1]) == (3.0, 30.0, [])


def test_the_sum_of_an_equal_value_is_refused_and_its_mean_is_the_value(two, x):
    for value in (1.0, jnp.ones(2)):
        with pytest.raises(ReduceError, match="2 times"):
            two.run(lambda value: replica().all_reduce("sum", value), args=(value,))
    with pytest.raises(ReduceError, match="reduced already"):
        two.run(lambda x: replica().all_reduce("sum", replica().all_reduce("sum", x)), args=(x,))
    assert float(two.run(lambda: replica().all_reduce("mean", 3.0))) == 3.0


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("number", "dtype"), [(2**30, "int32"), (100, "int8"), (200, "uint8"), (30000, "float16"), (3e37, "bfloat16")]
)
def test_the_mean_is_the_same_by_every_way(mirrored, number, dtype):
    three = mirrored(3)
    rows = next(iter(three.distribute_dataset([np.full(3, number, dtype)])))

    def merged(b):
        return replica().merge_call(lambda strategy, b: strategy.reduce("mean", b, axis=None), args=(b,))

    expected = three.reduce("mean", rows, axis=None)
    inside = [three.run(fn, args=(rows,)) for fn in (lambda b: replica().all_reduce("mean", b), merged)]
    assert float(expected[0]) == float(jnp.asarray(number, dtype))
    for mean in inside:
        assert mean == expected
        assert mean.dtype == expected.dtype


def test_a_sum_inside_of_a_replica_keeps_the_dtype_and_reduce_widens_small_integers(mirrored):
    three = mirrored(3)
    rows = next(iter(three.distribute_dataset([np.full(3, 100, "int8")])))
    inside = three.run(lambda b: replica().all_reduce("sum", b), args=(rows,))
    assert (int(inside[0]), inside.dtype) == (44, "int8")
    assert int(three.reduce("sum", rows, axis=None)[0]) == 300


def test_the_mean_gradient_of_a_narrow_float_does_not_overflow(mirrored):
    three = mirrored(3)
    with three.scope():
        w = rx.Variable(np.float16(1))
    rows = next(iter(three.distribute_dataset([np.full(3, 30000, "float16")])))
    [gradient] = three.run(lambda b: rx.grad(lambda: w * b[0], [w], aggregation="mean")(), args=(rows,))
    assert (float(gradient), gradient.dtype) == (30000.0, "float16")


def test_the_mean_of_integers_is_a_float(two, per_replica):
    assert float(two.run(lambda x: replica().all_reduce("mean", x), args=(per_replica(two, 1, 2),))) == 1.5


def test_an_unknown_op_is_refused(two, x):
    with pytest.raises(ReduceError, match="'max'"):
        two.run(lambda x: replica().all_reduce("max", x), args=(x,))


def test_all_reduce_passes_nan_through(two, per_replica):
    assert np.isnan(two.run(lambda x: replica().all_reduce("sum", x), args=(per_replica(two, 1.0, np.nan),)))


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    ("fn", "gradient"),
    [
        # Each replica's own loss counts: the gradients of all of them arrive at each x.
        (lambda x: replica().all_reduce("sum", x) * x, [6.0, 6.0]),
        (lambda x: replica().all_reduce("mean", x) + 0 * x, [1.0, 1.0]),
        (lambda x: replica().all_reduce("sum", x) + 0 * x, [2.0, 2.0]),
        # A loss that is one number for all replicas counts once.
        (lambda x: replica().all_reduce("sum", x), [1.0, 1.0]),
        (lambda x: replica().all_reduce("mean", x), [0.5, 0.5]),
        (lambda x: replica().all_reduce("sum", x) ** 2, [6.0, 6.0]),
    ],
    ids=["sum * own", "mean + own", "sum + own", "sum", "mean", "sum squared"],
)
@pytest.mark.parametrize(
    "ops", [rx.NcclAllReduce(), rx.HierarchicalCopyAllReduce(), rx.ReductionToOneDevice(), rx.RingAllReduce()]
)
def test_gradients_through_all_reduce(per_replica, ops, fn, gradient):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=ops)
    result = strategy.run(jax.grad(fn), args=(per_replica(strategy, 1.0, 2.0),))
    assert components(result) == pytest.approx(gradient)


# all_gather.


@pytest.mark.parametrize(
    ("axis", "expected"), [(0, [[1.0, 2.0], [3.0, 4.0]]), (1, [[1.0, 2.0, 3.0, 4.0]]), (-1, [[1.0, 2.0, 3.0, 4.0]])]
)
def test_every_replica_gets_the_concatenation(two, per_replica, axis, expected):
    value = per_replica(two, [[1.0, 2.0]], [[3.0, 4.0]])
    result = two.run(lambda x: replica().all_gather({"k": x}, axis=axis)["k"], args=(value,))
    np.testing.assert_array_equal(result, expected)
    assert isinstance(result, rx.Mirrored)


def test_an_equal_value_is_gathered_once_from_each_replica(two):
    np.testing.assert_array_equal(two.run(lambda: replica().all_gather(jnp.ones(2))), np.ones(4))


@pytest.mark.parametrize("axis", [1, -2, "0"])
def test_all_gather_needs_an_axis_that_exists(two, per_replica, axis):
    with pytest.raises(ReduceError, match="axis"):
        two.run(lambda x: replica().all_gather(x, axis=axis), args=(per_replica(two, [1.0], [2.0]),))


def test_scalars_cannot_be_gathered(two, x):
    with pytest.raises(ReduceError, match="axis"):
        two.run(lambda x: replica().all_gather(x), args=(x,))


@pytest.mark.parametrize(
    ("own", "gradient"), [(True, [[2.0, 4.0], [6.0, 8.0]]), (False, [[1.0, 2.0], [3.0, 4.0]])], ids=["own", "equal"]
)
def test_gradients_through_all_gather_are_the_slice_that_the_replica_gave(two, per_replica, own, gradient):
    def loss(x):
        total = jnp.sum(replica().all_gather(x) * jnp.array([1.0, 2.0, 3.0, 4.0]))
        return total + 0 * x.sum() if own else total

    result = two.run(jax.grad(loss), args=(per_replica(two, [1.0, 2.0], [3.0, 4.0]),))
    np.testing.assert_array_equal(np.stack(result.values), gradient)


# merge_call.


def test_merge_call_brings_the_replicas_together_once(two, x):
    calls = []

    def merge_fn(strategy, own, shared, *, factor):
        calls.append((strategy is two, isinstance(own, rx.DistributedValues), shared))
        total = strategy.reduce("sum", own, axis=None)
        return {"total": total * factor, "own": own, "text": "merged", "none": None}

    result = two.run(lambda x: replica().merge_call(merge_fn, args=(x, "shared"), kwargs={"factor": 10.0}), args=(x,))
    assert set(calls) == {(True, True, "shared")}
    assert float(result["total"]) == 30.0
    assert isinstance(result["total"], rx.Mirrored)
    assert components(result["own"]) == [1.0, 2.0]
    assert (result["text"], result["none"]) == ("merged", None)


def test_merge_call_gathers_reduces_along_axes_and_updates(two, per_replica):
    with two.scope():
        v = rx.Variable(0.0)

    def merge_fn(strategy, rows):
        strategy.update(v, lambda v, x: v.assign_add(x), args=(strategy.reduce("mean", rows, axis=0),))
        return strategy.gather(rows, axis=0), v.value

    value = per_replica(two, [1.0, 2.0], [3.0, 6.0])
    gathered, read = two.run(lambda x: replica().merge_call(merge_fn, args=(x,)), args=(value,))
    np.testing.assert_array_equal(gathered, [1.0, 2.0, 3.0, 6.0])
    assert float(read) == float(v.value) == 3.0


@pytest.mark.parametrize("call", [lambda s: s.run(lambda: None), lambda s: replica().all_reduce("sum", 1.0)])
def test_in_merge_call_there_is_no_replica(two, call):
    with pytest.raises((ContextError, AttributeError)):
        two.run(lambda: replica().merge_call(lambda strategy: call(strategy)))


def test_merge_call_needs_a_callable(two):
    with pytest.raises(ArgumentError, match="callable"):
        two.run(lambda: replica().merge_call("fn"))


# The context itself.


def test_a_replica_knows_its_number_and_how_many_there_are(mirrored):
    strategy = mirrored(3)
    context = strategy.run(lambda: (replica().replica_id_in_sync_group, replica().num_replicas_in_sync))
    assert components(context[0]) == [0.0, 1.0, 2.0]
    assert context[0].values[0].dtype == "int32"
    assert context[1] == 3
    assert strategy.run(lambda: replica().devices) == strategy.devices


@pytest.mark.parametrize(
    "use",
    [
        lambda kept: kept.all_reduce("sum", 1.0),
        lambda kept: kept.all_gather(jnp.ones(1)),
        lambda kept: kept.merge_call(lambda strategy: None),
    ],
)
def test_a_context_kept_from_another_run_is_refused(two, use):
    kept = []
    two.run(lambda: kept.append(replica()))
    with pytest.raises(ContextError, match="get_replica_context"):
        use(kept[0])
    with pytest.raises(ContextError, match="get_replica_context"):
        two.run(lambda: use(kept[0]))


def test_a_context_that_was_kept_has_no_number_any_more(two):
    kept = []
    two.run(lambda: kept.append(replica()))
    with pytest.raises(ContextError, match="not the running one"):
        kept[0].replica_id_in_sync_group  # noqa: B018


def test_merge_call_may_ask_for_the_replicas_number(two):
    def step():
        context = replica()
        return context.merge_call(lambda strategy: context.replica_id_in_sync_group)

    assert components(two.run(step)) == [0.0, 1.0]
