from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError, ReplicaDivergenceError, StrategyMismatchError, VariableError

METHODS = ["assign", "assign_add", "assign_sub"]
ERROR = object()


@pytest.fixture
def two(mirrored):
    return mirrored(2)


def variable_of(strategy, value=10.0, **declaration):
    with strategy.scope():
        return rx.Variable(value, name="v", **declaration)


def components(strategy, variable):
    """What each replica reads."""
    return [float(x) for x in strategy.local_results(strategy.run(lambda: variable.value))]


# The table of reads and writes. The variable starts at 10, replica r writes r + 1, cross-replica code writes 4.


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    ("aggregation", "method", "stored"),
    [
        ("sum", "assign", 3.0),
        ("sum", "assign_add", 13.0),
        ("sum", "assign_sub", 7.0),
        ("mean", "assign", 1.5),
        ("mean", "assign_add", 11.5),
        ("mean", "assign_sub", 8.5),
        ("only_first_replica", "assign", 1.0),
        ("only_first_replica", "assign_add", 11.0),
        ("only_first_replica", "assign_sub", 9.0),
    ],
)
def test_a_mirrored_variable_aggregates_what_replicas_write(two, per_replica, aggregation, method, stored):
    v = variable_of(two, aggregation=aggregation)
    returned = two.run(lambda x: getattr(v, method)(x), args=(per_replica(two, 1.0, 2.0),))
    assert float(returned) == stored
    assert components(two, v) == [stored, stored]
    assert float(v.value) == stored


@pytest.mark.parametrize("method", METHODS)
def test_a_mirrored_variable_without_aggregation_refuses_values_that_differ(two, per_replica, method):
    v = variable_of(two)
    with pytest.raises(ReplicaDivergenceError) as caught:
        two.run(lambda x: getattr(v, method)(x), args=(per_replica(two, 1.0, 2.0),))
    assert caught.value.variable == "v"
    assert components(two, v) == [10.0, 10.0]


@pytest.mark.daily(3)
@pytest.mark.parametrize(("method", "stored"), [("assign", 2.0), ("assign_add", 12.0), ("assign_sub", 8.0)])
@pytest.mark.parametrize("aggregation", ["none", "mean", "only_first_replica"])
def test_an_equal_value_is_written_as_it_is(two, aggregation, method, stored):
    v = variable_of(two, aggregation=aggregation)
    two.run(lambda: getattr(v, method)(2.0))
    assert components(two, v) == [stored, stored]


@pytest.mark.parametrize("method", METHODS)
def test_an_equal_value_cannot_be_summed(two, method):
    v = variable_of(two, aggregation="sum")
    with pytest.raises(VariableError, match="2 times"):
        two.run(lambda: getattr(v, method)(2.0))
    assert float(v.value) == 10.0


@pytest.mark.parametrize("aggregation", ["none", "sum", "mean", "only_first_replica"])
@pytest.mark.parametrize(("method", "stored"), [("assign", 4.0), ("assign_add", 14.0), ("assign_sub", 6.0)])
def test_cross_replica_code_writes_all_copies_of_a_mirrored_variable(two, aggregation, method, stored):
    v = variable_of(two, aggregation=aggregation)
    with two.scope():
        assert float(getattr(v, method)(4.0)) == stored
    assert components(two, v) == [stored, stored]


@pytest.mark.daily(3)
@pytest.mark.parametrize("aggregation", ["none", "sum", "mean", "only_first_replica"])
@pytest.mark.parametrize(
    ("method", "stored"), [("assign", [1.0, 2.0]), ("assign_add", [11.0, 12.0]), ("assign_sub", [9.0, 8.0])]
)
def test_each_replica_writes_its_own_component_of_an_on_read_variable(two, per_replica, aggregation, method, stored):
    v = variable_of(two, synchronization="on_read", aggregation=aggregation)
    returned = two.run(lambda x: getattr(v, method)(x), args=(per_replica(two, 1.0, 2.0),))
    assert [float(x) for x in returned.values] == stored
    assert components(two, v) == stored


@pytest.mark.parametrize(("aggregation", "read"), [("sum", 3.0), ("mean", 1.5), ("only_first_replica", 1.0)])
@pytest.mark.parametrize("inside_function", [False, True])
def test_an_on_read_variable_is_aggregated_when_read_outside_of_a_replica(
    two, per_replica, aggregation, read, inside_function
):
    v = variable_of(two, synchronization="on_read", aggregation=aggregation)
    two.run(lambda x: v.assign(x), args=(per_replica(two, 1.0, 2.0),))
    outside = rx.function(lambda: v.value) if inside_function else v.read_value
    assert float(outside()) == read
    assert v.shape == ()


def test_an_on_read_variable_without_aggregation_has_no_value_outside_of_a_replica(two):
    v = variable_of(two, synchronization="on_read")
    for read in (lambda: v.value, v.numpy, lambda: v.assign(4.0), lambda: v.assign_add(4.0)):
        with pytest.raises(VariableError, match="aggregation"):
            read()
    assert components(two, v) == [10.0, 10.0]


@pytest.mark.parametrize(
    ("aggregation", "method", "stored", "read"),
    [
        ("sum", "assign", 2.0, 4.0),
        ("mean", "assign", 4.0, 4.0),
        ("mean", "assign_add", 14.0, 14.0),
        ("mean", "assign_sub", 6.0, 6.0),
        ("only_first_replica", "assign", 4.0, 4.0),
        ("only_first_replica", "assign_add", 14.0, 14.0),
        ("only_first_replica", "assign_sub", 6.0, 6.0),
    ],
)
def test_cross_replica_code_writes_every_component_of_an_on_read_variable(two, aggregation, method, stored, read):
    v = variable_of(two, synchronization="on_read", aggregation=aggregation)
    assert float(getattr(v, method)(4.0)) == read
    assert components(two, v) == [stored, stored]
    assert float(v.value) == read


@pytest.mark.parametrize("method", ["assign_add", "assign_sub"])
def test_a_change_cannot_be_split_over_the_terms_of_a_sum(two, method):
    v = variable_of(two, synchronization="on_read", aggregation="sum")
    with pytest.raises(VariableError, match="split"):
        getattr(v, method)(4.0)
    assert components(two, v) == [10.0, 10.0]


@pytest.mark.daily(6)
@pytest.mark.parametrize("inside_function", [False, True])
@pytest.mark.parametrize(
    ("dtype", "totals"),
    [
        ("int32", [10, 1, -10, 2**31 - 1, -(2**31)]),
        ("int8", [127, -128, 5]),
        ("uint32", [2**32 - 1]),
        ("float32", [0.1, 1e-30, 3.4e38, -7.7, float("inf"), 16777217.0]),
        ("float16", [0.1, 65504.0]),
        ("bfloat16", [0.1, 3e38]),
        ("complex64", [0.1 - 7.7j]),
    ],
)
def test_a_sum_reads_as_the_total_that_was_assigned(mirrored, dtype, totals, inside_function):
    v = variable_of(mirrored(3), 0, dtype=dtype, synchronization="on_read", aggregation="sum")
    assign = rx.function(v.assign) if inside_function else v.assign
    for total in np.array(totals, v.dtype):
        assert assign(total) == v.value == total
        assert v.value.dtype == dtype


def test_an_integer_sum_is_shared_out_evenly(two):
    v = variable_of(two, 0, synchronization="on_read", aggregation="sum")
    v.assign(5)
    assert components(two, v) == [3.0, 2.0]


def test_counts_survive_a_checkpoint(mirrored, tmp_path):
    three = mirrored(3)
    v = variable_of(three, 0, synchronization="on_read", aggregation="sum")
    rows = three.distribute_values_from_function(lambda c: [4, 5, 5][c.replica_id_in_sync_group])
    three.run(lambda n: v.assign(n), args=(rows,))
    path = rx.Checkpoint(v=v).write(tmp_path / "saved")
    v.assign(0)
    rx.Checkpoint(v=v).restore(path)
    assert int(v) == 14


@pytest.mark.parametrize("synchronization", ["on_write", "on_read"])
def test_the_mean_of_a_narrow_float_does_not_overflow(mirrored, synchronization):
    three = mirrored(3)
    v = variable_of(three, 0, dtype="float16", synchronization=synchronization, aggregation="mean")
    batch = next(iter(three.distribute_dataset([np.full(3, 30000, "float16")])))
    three.run(lambda b: v.assign(b[0]), args=(batch,))
    assert float(v.value) == 30000.0
    assert v.value.dtype == "float16"


@pytest.mark.daily(4)
@pytest.mark.parametrize("make", [lambda mirrored: mirrored(1), lambda mirrored: rx.OneDeviceStrategy("cpu:1")])
@pytest.mark.parametrize("synchronization", ["on_write", "on_read"])
@pytest.mark.parametrize("aggregation", ["none", "sum", "mean", "only_first_replica"])
def test_on_one_replica_every_variable_is_an_ordinary_one(mirrored, make, synchronization, aggregation):
    strategy = make(mirrored)
    v = variable_of(strategy, synchronization=synchronization, aggregation=aggregation)
    strategy.run(lambda x: v.assign(x), args=(jnp.float32(1.0),))
    assert float(v.value) == 1.0
    strategy.run(lambda x: v.assign_add(x), args=(jnp.float32(2.0),))
    v.assign_add(4.0)
    assert float(v.value) == 7.0


def test_a_variable_made_outside_of_any_scope_is_one_variable_for_all_replicas(mirrored):
    v = rx.Variable(1.0)
    step = lambda: v.assign_add(1.0)  # noqa: E731
    mirrored(2).run(step)
    mirrored(3).run(step)
    rx.function(step)()
    assert float(v.value) == 4.0


# Creation.


def test_on_read_variables_are_not_trained_unless_asked(two):
    assert variable_of(two).trainable
    assert not variable_of(two, synchronization="on_read").trainable
    assert variable_of(two, synchronization="on_read", trainable=True).trainable


@pytest.mark.parametrize(
    "declaration",
    [
        {"synchronization": "none"},
        {"synchronization": "sometimes"},
        {"aggregation": "max"},
        {"aggregation": 1},
        {"aggregation": "mean", "dtype": "int32"},
        {"aggregation": "mean", "dtype": "bool"},
        {"aggregation": "sum", "dtype": "bool"},
        {"aggregation": "sum", "dtype": "bool", "synchronization": "on_read"},
        {"aggregation": "mean", "dtype": "int32", "synchronization": "on_read"},
    ],
    ids=str,
)
def test_a_declaration_without_meaning_is_refused(declaration):
    with pytest.raises(VariableError):
        rx.Variable(1.0, **declaration)


def test_declarations_are_enums_or_their_names():
    v = rx.Variable(1.0, synchronization=rx.VariableSynchronization.ON_READ, aggregation="SUM")
    assert v.synchronization is rx.VariableSynchronization.ON_READ
    assert v.aggregation is rx.VariableAggregation.SUM
    assert rx.Variable(1.0, aggregation=None).aggregation is rx.VariableAggregation.NONE


@pytest.mark.parametrize(
    ("initial", "dtype", "expected"),
    [
        (2, None, "int32"),
        (2, "float32", "float32"),
        (lambda: jnp.ones(3), None, "float32"),
        (np.ones(3, "float16"), None, "float16"),
        (True, None, "bool"),
        ([1.0, 2.0], "bfloat16", "bfloat16"),
    ],
)
def test_the_dtype_is_the_initial_values_unless_given(initial, dtype, expected):
    v = rx.Variable(initial, dtype=dtype)
    assert v.dtype == expected
    assert v.value.dtype == expected
    assert v.value.shape == v.shape
    assert not v.value.weak_type


def test_a_variable_may_hold_a_random_key(two):
    v = variable_of(two, jax.random.key(0))

    def draw():
        key, subkey = jax.random.split(v.value)
        v.assign(key)
        return jax.random.normal(subkey)

    key, subkey = jax.random.split(jax.random.key(0))
    assert float(two.run(draw)) == pytest.approx(float(jax.random.normal(subkey)))
    assert float(two.run(draw)) == pytest.approx(float(jax.random.normal(jax.random.split(key)[1])))


@pytest.mark.parametrize("scoped", [False, True])
def test_a_variable_does_not_share_memory_with_what_it_was_given(two, scoped):
    def make():
        return variable_of(two, source) if scoped else rx.Variable(source)

    source = np.ones(4096, "float32")
    v = make()
    source[:] = 2.0
    assert v.numpy()[0] == 1.0
    v.assign(source)
    source[:] = 3.0
    assert v.numpy()[0] == 2.0


# Assignment.


@pytest.mark.parametrize("method", METHODS)
def test_a_per_replica_value_is_not_assigned_from_outside(two, per_replica, method):
    v = variable_of(two, aggregation="sum")
    with pytest.raises(VariableError, match=r"reduce"):
        getattr(v, method)(per_replica(two, 1.0, 2.0))


def test_assigning_another_shape_is_refused():
    v = rx.Variable([1.0, 2.0], name="weights")
    with pytest.raises(VariableError, match=r"'weights'.*\(2,\).*\(3,\)"):
        v.assign(jnp.ones(3))
    with pytest.raises(VariableError):
        v.assign(1.0)
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])


def test_a_change_broadcasts_and_takes_the_variables_dtype():
    v = rx.Variable([1, 2])
    v.assign_add(1.0)
    np.testing.assert_array_equal(v.numpy(), [2, 3])
    assert v.dtype == "int32"


def test_assigning_inside_jax_jit_points_to_rx_function():
    v = rx.Variable(1.0, name="v")
    with pytest.raises(ProgramError, match=r"'v'.*rx\.function"):
        jax.jit(lambda x: v.assign_add(x))(1.0)
    assert float(v.value) == 1.0


def test_nan_is_stored_as_it_is(two, per_replica):
    v = variable_of(two, aggregation="mean")
    two.run(lambda x: v.assign(x), args=(per_replica(two, 1.0, np.nan),))
    assert np.isnan(v.numpy())


# Whose it is.


def test_a_variable_is_not_read_or_written_under_another_strategy(mirrored, two):
    v = variable_of(two)
    other = mirrored(3)
    for use in (lambda: v.value, lambda: v.assign(1.0), lambda: v.assign_add(1.0)):
        with other.scope(), pytest.raises(StrategyMismatchError, match=r"'v'.*cpu:0, cpu:1\].*cpu:2"):
            use()
        with pytest.raises(StrategyMismatchError):
            other.run(use)
    assert float(v.value) == 10.0


def test_without_a_current_strategy_a_variable_is_its_strategys_own(two):
    v = variable_of(two)
    v.assign(3.0)
    assert v.strategy is two
    assert isinstance(v.value, rx.Mirrored)


def test_a_deep_copy_has_its_own_value_and_the_same_strategy(two):
    v = variable_of(two)
    copied = copy.deepcopy(v)
    copied.assign(5.0)
    assert copied.strategy is two
    assert (float(v.value), float(copied.value)) == (10.0, 5.0)


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int32", 2.7),
        ("int32", np.float64(0.5)),
        ("int8", 300),
        ("int8", np.int64(-129)),
        ("int8", np.uint8(200)),
        ("uint8", -1),
        ("int32", np.nan),
    ],
)
def test_integers_do_not_lose_digits(method, dtype, value):
    variable = rx.Variable(np.zeros((), dtype))
    with pytest.raises(VariableError, match=f"is of {dtype} and was given .* of which it would lose digits"):
        getattr(variable, method)(value)
    assert variable.numpy() == 0


@pytest.mark.parametrize("traced", [jnp.float32(2.0), jnp.int32(2)])
def test_integers_do_not_lose_digits_in_steps(traced):
    variable = rx.Variable(np.int8(1))
    with pytest.raises(VariableError, match="lose digits"):
        rx.function(lambda x: variable.assign(x))(traced)
    rx.function(lambda x: variable.assign(x.astype("int8")))(traced)
    assert variable.numpy() == 2
    rx.function(lambda x: variable.assign_add(x))(1)


def test_integers_take_what_they_hold_exactly():
    variable = rx.Variable(np.int32(0))
    for value in (2.0, np.int64(7), np.uint8(3), True, np.float32(4.0), jnp.int8(-1)):
        variable.assign(value)
        assert variable.numpy() == value


def test_integers_take_the_largest_and_the_smallest_that_there_are():
    variable = rx.Variable(np.int8(0))
    for value in (127, np.int64(-128), np.float32(127.0)):
        variable.assign(value)
        assert variable.numpy() == value
    for value in (128, np.int64(-129), np.float32(128.0)):
        with pytest.raises(VariableError, match="lose digits"):
            variable.assign(value)


@pytest.mark.parametrize("shape", [(3,), (2, 2, 1), (2, 3)])
def test_a_change_that_does_not_broadcast_says_so(shape):
    variable = rx.Variable(np.zeros((2, 2), np.float32))
    for method in (variable.assign_add, variable.assign_sub):
        with pytest.raises(VariableError, match=r"has shape \(2, 2\), was given shape"):
            method(np.ones(shape, np.float32))


def test_a_number_that_no_array_holds_is_told():
    with pytest.raises(VariableError, match="takes an array of numbers"):
        rx.Variable(1.0).assign(10**400)
    with pytest.raises(VariableError, match="lose digits"):
        rx.Variable(1).assign(10**30)


def test_a_value_of_another_shape_is_refused_also_one_of_as_many_numbers():
    variable = rx.Variable(np.zeros((2, 3), np.float32))
    for shape in ((3, 2), (6,), (2, 3, 1), (3,)):
        with pytest.raises(VariableError, match=r"has shape \(2, 3\), was assigned shape"):
            variable.assign(np.ones(shape, np.float32))
    assert not variable.numpy().any()
