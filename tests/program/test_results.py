"""Which arrays count as results of `run`, while a program is traced and afterwards."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ReduceError
from replicax.program.results import COMBINED, Counts, mark, marked_like, marked_with


@pytest.fixture
def two(mirrored):
    return mirrored(2)


def test_the_number_goes_with_the_array_and_with_nothing_computed_from_it():
    array = jnp.ones(2)
    assert marked_with(array) is None
    mark(array, 3)
    assert marked_with(array) == 3
    assert [marked_with(new) for new in (array + 0, jnp.copy(array), array[:1], np.asarray(array), 3)] == [None] * 5
    assert marked_with(marked_like(jnp.copy(array), array)) == 3
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is None


def test_a_program_asks_for_the_numbers_of_its_arguments_only():
    first, second, made = jnp.ones(1), jnp.ones(1), jnp.ones(1)
    counts = Counts([first, second], [2, None])
    counts.note(made, COMBINED)
    assert (counts.of(made), counts.of(second), counts.asked) == (COMBINED, None, {1: None})
    assert (counts.of(first), counts.asked) == (2, {0: 2, 1: None})
    assert counts.of(jnp.ones(1)) is None
    assert counts.of_results([made, first]) == ([(0, COMBINED)], [(1, 0)])


def test_one_function_takes_results_and_other_arrays(two):
    mean, total = (rx.function(lambda x, op=op: two.reduce(op, x)) for op in ("mean", "sum"))
    result, other = two.run(lambda: jnp.ones(())), two.replicate(jnp.ones(()))
    assert [float(mean(x)) for x in (result, other, result)] == [1.0, 1.0, 1.0]
    assert mean.num_programs == 2
    assert float(total(result)) == 2.0
    for wrong in (other, mean(result), total(result)):
        with pytest.raises(ReduceError):
            total(wrong)
    assert float(total(result)) == 2.0
    assert total.num_programs == 1


def test_a_function_that_only_passes_an_array_on_is_one_program(two):
    passed = rx.function(lambda x, y: {"y": y, "x": x})
    result, other = two.run(lambda: jnp.ones(())), two.replicate(jnp.ones(()))
    assert float(two.reduce("sum", passed(result, other)["x"])) == 2.0
    with pytest.raises(ReduceError):
        two.reduce("sum", passed(other, result)["x"])
    assert passed.num_programs == 1


def test_a_result_stays_one_through_functions_in_functions(two):
    inner = rx.function(lambda: two.run(lambda: jnp.ones(())))
    outer = rx.function(lambda: (inner(), two.reduce("sum", inner())))
    each, total = outer()
    assert float(two.reduce("sum", each)) == float(total) == 2.0
    with pytest.raises(ReduceError, match="already"):
        two.reduce("sum", total)


def test_results_count_alike_when_run_eagerly(two):
    rx.config.run_eagerly(True)
    try:
        result = two.run(lambda: jnp.ones(2))
        assert float(two.reduce("sum", result, axis=0)) == 4.0
        assert two.gather(result).shape == (4,)
        with pytest.raises(ReduceError, match="already"):
            two.reduce("sum", two.reduce("sum", result))
    finally:
        rx.config.run_eagerly(False)


def test_what_update_returns_is_one_value(two):
    with two.scope():
        v = rx.Variable(1.0)
    assert not isinstance(two.update(v, lambda v: v.assign_add(1.0)), rx.PerReplica)
    with pytest.raises(ReduceError):
        two.reduce("sum", two.update(v, lambda v: v.assign_add(1.0)))


def test_a_function_of_partial_values_may_have_whole_ones_beside_them(mirrored):
    strategy = mirrored(8)
    (batch,) = strategy.distribute_dataset([np.arange(5, dtype=np.float32)])
    scale = strategy.replicate(jnp.float32(2.0))
    total = rx.function(lambda b, scale: strategy.reduce("sum", b, axis=0) * scale)
    assert float(total(batch, scale)) == 20.0
    assert float(rx.function(lambda b: strategy.gather(b)[3])(batch)) == 3.0


def test_results_of_different_steps_are_not_one_nest_of_local_results(mirrored):
    strategy = mirrored(8)
    (batch,) = strategy.distribute_dataset([np.arange(5, dtype=np.float32)])
    full, partial = strategy.run(lambda: jnp.ones(())), strategy.run(lambda b: jnp.ones(()), args=(batch,))
    with pytest.raises(rx.errors.ReplicaShapeError, match=r"\[5, 8\] replicas"):
        strategy.local_results((full, partial))
    assert len(strategy.local_results((batch, full))) == 5


def test_jax_transformations_around_run_go_on_working(two):
    double = jax.jit(lambda x: two.run(lambda x: 2 * x, args=(x,)))
    np.testing.assert_array_equal(double(jnp.ones(2)), [2.0, 2.0])


def test_state_of_a_full_step_cannot_go_into_a_partial_one_and_the_error_says_what_can(mirrored):
    strategy = mirrored(8)
    full, partial = strategy.distribute_dataset([np.arange(16, dtype=np.float32), np.arange(5, dtype=np.float32)])
    step = lambda state, batch: state + jnp.sum(batch)  # noqa: E731
    state = strategy.run(step, args=(jnp.zeros(()), full))
    with pytest.raises(rx.errors.ReplicaShapeError, match=r"(?s)\[5, 8\].*on_read.*strategy.reduce.*drop"):
        strategy.run(step, args=(state, partial))
    with strategy.scope():
        own = rx.Variable(0.0, synchronization="on_read", aggregation="sum")
    for batch in (full, partial, full):
        strategy.run(lambda batch: own.assign_add(jnp.sum(batch)), args=(batch,))
    assert float(own) == 120 + 10 + 120
