from __future__ import annotations

import dataclasses
import functools
import gc
import weakref
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ContextError, ReplicaShapeError, TracedValueError


@pytest.fixture
def x(two, per_replica):
    return per_replica(two, 1.0, 2.0)


def components(value):
    assert isinstance(value, rx.PerReplica)
    return [float(component) for component in value.values]


# What comes in.


class Pair(NamedTuple):
    a: object
    b: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    rows: object
    label: str = dataclasses.field(default="", metadata={"static": True})


def test_each_replica_gets_its_own_component_and_everything_else_as_it_is(two, x, either_way):
    marker = object()
    seen = []

    def fn(nest, plain, *, key):
        seen.append((nest["label"], plain, key is marker))
        return nest["pair"][0] + 10 * nest["pair"][1].a

    result = two.run(fn, args=({"pair": (x, Pair(x, 0)), "label": "l"}, "p"), kwargs={"key": marker})
    assert components(result) == [11.0, 22.0]
    assert set(seen) == {("l", "p", True)}


def test_registered_dataclasses_are_nests(two, x):
    result = two.run(lambda batch: Batch(batch.rows + 1, batch.label), args=(Batch(x, "test"),))
    assert isinstance(result, Batch)
    assert components(result.rows) == [2.0, 3.0]
    assert result.label == "test"


def test_arrays_and_numbers_go_to_every_replica(two):
    result = two.run(lambda a, b, c: a.sum() + b + c, args=(np.ones(3), 2.0, jnp.float32(4.0)))
    assert float(result) == 9.0


def test_variables_are_passed_whole(two, x):
    with two.scope():
        v = rx.Variable(1.0, aggregation="sum")
    assert two.run(lambda v, x: v.assign_add(x) is None, args=(v, x)) is False
    assert float(v.value) == 4.0


@dataclasses.dataclass
class Unregistered:
    rows: object


def test_a_dataclass_that_jax_does_not_know_is_a_nest_too(two, x):
    assert components(two.run(lambda batch: batch.rows + 1, args=(Unregistered(x),))) == [2.0, 3.0]
    assert components(two.run(lambda x: Unregistered(x), args=(x,)).rows) == [1.0, 2.0]


def test_components_of_different_shapes_cannot_enter_one_program(two, per_replica):
    uneven = per_replica(two, [1.0, 2.0], [3.0])
    with pytest.raises(ReplicaShapeError, match=r"\(2,\).*\(1,\).*distribute_dataset"):
        two.run(lambda x: x, args=(uneven,))


def test_values_of_different_steps_cannot_be_mixed(mirrored, per_replica):
    four, full, partial = mirrored(4), [1.0, 2.0, 3.0, 4.0], [1.0, 2.0]
    with pytest.raises(ReplicaShapeError, match=r"\[2, 4\]"):
        four.run(lambda a, b: a, args=(per_replica(four, *full), per_replica(mirrored(2), *partial)))


def test_a_value_of_a_larger_strategy_is_refused(mirrored, two, per_replica):
    with pytest.raises(ReplicaShapeError, match="4"):
        two.run(lambda x: x, args=(per_replica(mirrored(4), 1.0, 2.0, 3.0, 4.0),))


def test_a_captured_array_on_the_devices_that_jax_does_not_take_is_refused_with_what_to_do(two, x):
    weights = two.replicate(jnp.ones(2))
    with pytest.raises(rx.errors.ProgramError, match="Pass it"):
        two.run(lambda x: x + jnp.sum(weights.imag), args=(x,))


def test_a_per_replica_value_that_is_captured_is_each_replicas_own_component(two, x):
    assert components(two.run(lambda: x)) == [1.0, 2.0]


# What comes out.


def test_what_is_proven_equal_comes_back_mirrored_and_the_rest_per_replica(two, x, either_way):
    def fn(x):
        replica = rx.get_replica_context()
        return {
            "own": x,
            "reduced": replica.all_reduce("sum", x),
            "mixed": x + replica.all_reduce("sum", x),
            "constant": jnp.float32(5.0),
            "id": replica.replica_id_in_sync_group,
        }

    result = two.run(fn, args=(x,))
    assert components(result["own"]) == [1.0, 2.0]
    assert components(result["mixed"]) == [4.0, 5.0]
    assert components(result["id"]) == [0.0, 1.0]
    for name, value in {"reduced": 3.0, "constant": 5.0}.items():
        assert float(result[name]) == value
        assert isinstance(result[name], rx.Mirrored)


def test_plain_python_values_come_back_bare(two):
    marker = object()
    plain = {"int": 5, "float": 2.5, "bool": True, "str": "a", "none": None, "object": marker, "type": int}
    assert two.run(lambda: plain) == plain
    assert two.run(lambda: None) is None


def test_nests_keep_their_types(two, x):
    result = two.run(lambda x: Pair([x], (x, {"k": x})), args=(x,))
    assert isinstance(result, Pair)
    assert isinstance(result.a, list)
    assert components(result.b[1]["k"]) == [1.0, 2.0]


def test_a_variable_that_is_returned_is_the_variable(two):
    with two.scope():
        v = rx.Variable(1.0)
    assert two.run(lambda: v) is v


@pytest.mark.daily(2)
@pytest.mark.parametrize("make", [lambda mirrored: mirrored(1), lambda mirrored: rx.OneDeviceStrategy("cpu:2")])
def test_with_one_replica_everything_comes_back_bare(mirrored, make, either_way):
    strategy = make(mirrored)
    own, reduced = strategy.run(lambda x: (x, rx.get_replica_context().all_reduce("sum", x)), args=(jnp.float32(4),))
    assert float(own) == float(reduced) == 4.0
    assert own.shape == ()
    assert not isinstance(own, rx.PerReplica)


@pytest.mark.daily(2)
@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "complex64"])
def test_any_dtype_passes(two, per_replica, dtype):
    value = per_replica(two, jnp.ones(2, dtype), jnp.zeros(2, dtype))
    result = two.run(lambda x: x, args=(value,))
    assert [component.dtype for component in result.values] == [dtype] * 2
    assert [component.astype("float32").sum() for component in result.values] == [2.0, 0.0]


def test_random_keys_differ_between_replicas_where_they_are_folded(two):
    def fn(key):
        mine = jax.random.fold_in(key, rx.get_replica_context().replica_id_in_sync_group)
        return jax.random.normal(key), jax.random.normal(mine)

    key = jax.random.key(0)
    shared, own = two.run(fn, args=(key,))
    assert float(shared) == float(jax.random.normal(key))
    expected = [float(jax.random.normal(jax.random.fold_in(key, i))) for i in range(2)]
    assert components(own) == pytest.approx(expected)


def test_random_keys_may_be_per_replica(two, per_replica):
    keys = per_replica(two, jax.random.key(0), jax.random.key(1))
    expected = [float(jax.random.normal(jax.random.key(i))) for i in range(2)]
    assert components(two.run(jax.random.normal, args=(keys,))) == pytest.approx(expected)


# Where it runs.


def test_every_replica_computes_on_its_own_device(two, x):
    result = two.run(lambda x: x + 1, args=(x,))
    assert [component.devices() for component in result.values] == [{device} for device in two.devices]


def test_several_runs_in_one_function_share_values_and_variables(two, x):
    with two.scope():
        v = rx.Variable(1.0)

    @rx.function
    def both(x):
        doubled = two.run(lambda x: x * 2, args=(x,))
        two.run(lambda x: v.assign_add(rx.get_replica_context().all_reduce("sum", x)), args=(doubled,))
        return two.run(lambda x: x + v, args=(doubled,))

    assert components(both(x)) == [9.0, 11.0]
    assert components(both(x)) == [15.0, 17.0]


def test_run_works_inside_jax_jit_on_what_is_no_variable(two, x):
    assert float(jax.jit(lambda value: two.run(lambda y: y * 2, args=(value,)))(3.0)) == 6.0
    assert components(jax.jit(lambda value: two.run(lambda y: y * 2, args=(value,)))(x)) == [2.0, 4.0]


def test_one_program_has_one_strategy(mirrored, two):
    @rx.function
    def both():
        two.run(lambda: None)
        mirrored(3).run(lambda: None)

    with pytest.raises(ContextError, match="one strategy"):
        both()


def test_one_program_has_one_number_of_replicas(mirrored, per_replica):
    four = mirrored(4)

    @rx.function
    def both():
        four.run(lambda: None)
        four.run(lambda x: x, args=(partial,))

    partial = per_replica(mirrored(2), 1.0, 2.0)
    with pytest.raises(ContextError, match="4 and 2"):
        both()


def test_a_replica_function_is_traced_once_so_that_it_cannot_change_its_mind(two, x):
    calls = []

    def fn(x):
        calls.append(x)
        return x if len(calls) == 1 else rx.get_replica_context().all_reduce("sum", x)

    first, second = (two.run(fn, args=(x,)) for _ in range(2))
    assert len(calls) == 1
    np.testing.assert_array_equal(first.stacked, second.stacked)


def test_differentiating_run_outside_of_a_function_asks_for_one(two):
    with two.scope():
        v = rx.Variable(1.0)
    with pytest.raises(ContextError, match=r"@rx\.function"):
        rx.grad(lambda: two.run(lambda: v * v), v)()


# Programs of functions that are passed in.


def test_the_second_run_of_the_same_function_compiles_nothing(two, x, per_replica, compilations):
    class Model:
        def method(self, x):
            return x * 2

    model = Model()
    for fn in (lambda x: x + 1, model.method, functools.partial(jnp.add, 1), jnp.sin):
        two.run(fn, args=(x,))
        fresh = per_replica(two, 3.0, 4.0)
        with compilations() as compiled:
            two.run(model.method if fn == model.method else fn, args=(fresh,))
        assert compiled == []


def test_a_strategy_keeps_neither_a_function_nor_what_it_holds_alive(two, x):
    class Held:
        value = 1.0

    held = Held()
    two.run(lambda x, held=held: x + held.value, args=(x,))
    reference = weakref.ref(held)
    del held
    gc.collect()
    assert reference() is None


def test_equal_looking_functions_are_not_confused(two):
    results = [two.run(lambda i=i: i) for i in range(5)]
    assert results == list(range(5))


def test_donated_arguments_are_used_up(two, per_replica):
    donated, kept = per_replica(two, [1.0, 2.0], [3.0, 4.0]), per_replica(two, [1.0, 2.0], [3.0, 4.0])
    two.run(lambda a, b: (a + b, b * 2), args=(donated, kept), donate_argnums=(0,))
    assert donated.stacked.is_deleted()
    assert not kept.stacked.is_deleted()


@pytest.mark.parametrize(
    "use", [lambda b: 1 if b[0] > 3 else 2, lambda b: float(b[0]), np.asarray, lambda b: [1, 2][b[0].astype(int)]]
)
def test_run_eagerly_says_that_an_array_is_not_one_number(two, per_replica, use):
    rows = per_replica(two, np.ones(2), np.zeros(2))
    rx.config.run_eagerly(True)
    try:
        with pytest.raises(TracedValueError, match=r"each replica's own value.*jnp\.where"):
            two.run(lambda b: jnp.asarray(use(b)), args=(rows,))
    finally:
        rx.config.run_eagerly(False)


@pytest.mark.parametrize("wrap", [lambda fn: fn, lambda fn: rx.function(lambda *args: fn(*args))])
def test_a_state_that_each_replica_computes_for_itself_is_spoken_of(two, x, caplog, wrap):
    def step(state, x):
        return {"w": state["w"] - x, "mean": state["mean"] + rx.get_replica_context().all_reduce("mean", x)}

    call = wrap(lambda state, x: two.run(step, args=(state, x)))
    state = call({"w": jnp.ones(3), "mean": jnp.zeros(())}, x)
    assert not caplog.records
    call(call(state, x), x)
    [record] = caplog.records
    assert "['w'] for all replicas" in record.message


def test_keys_of_each_replicas_own_are_what_they_should_be(two, x, caplog):
    def step(key, x):
        return jax.random.fold_in(key, rx.get_replica_context().replica_id_in_sync_group)

    two.run(step, args=(two.run(step, args=(jax.random.key(0), x)), x))
    assert not caplog.records
