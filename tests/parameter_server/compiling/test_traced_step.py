"""From a scheduled function to a step: what it takes, what it reads, and what comes out of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax import context
from replicax.errors import ContextError, VariableError
from replicax.parameter_server.actors.messages import InputSource
from replicax.parameter_server.compiling.recording import PytreeSpec, Recorder, current_worker_index
from replicax.parameter_server.compiling.traced_step import TracedStep
from replicax.parameter_server.scheduling.remote_values import PerWorkerDataset, PerWorkerIterator, PerWorkerValues
from replicax.program.pytrees import flatten_inputs
from tests.parameter_server.fakes import strategy_of

BATCH = {"x": np.zeros((8, 3), np.float32), "y": (np.zeros(8, np.int64), None)}
VALUE = [np.zeros((2,), np.float64)]
ITERATOR, RESOURCE = 5, 6


def described(nest):
    leaves, treedef = jax.tree.flatten(nest)
    return PytreeSpec(treedef, tuple(jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype) for leaf in leaves))


def describe(kind, number):
    return described({("batch", ITERATOR): BATCH, ("resource", RESOURCE): VALUE}[kind, number])


@pytest.fixture
def strategy(fake_ray):
    with strategy_of() as strategy:
        yield strategy


@pytest.fixture
def iterator():
    return PerWorkerIterator(ITERATOR, PerWorkerDataset(4, lambda dataset: None), describe)


@pytest.fixture
def resource():
    return PerWorkerValues(RESOURCE, lambda number: ())


def traced(strategy, fn, *args, **kwargs):
    arrays, structure = flatten_inputs((args, kwargs))
    return TracedStep(fn, structure, arrays, strategy, Recorder(describe))


def made(strategy, *values):
    with strategy.scope():
        return [rx.Variable(value, name=f"v{i}") for i, value in enumerate(values)]


def shapes(step):
    """Shapes of the inputs that are no variables."""
    return [var.aval.shape for var in step.split.program.jaxpr.invars[len(step.variables) :]]


# Inputs.


def test_a_batch_is_a_nest_of_inputs(strategy, iterator):
    def fn(it):
        batch = next(it)
        assert set(batch) == {"x", "y"}
        assert batch["y"][1] is None
        assert batch["y"][0].dtype == jnp.int32  # as without 64 bits
        return batch["x"].sum() + batch["y"][0].sum()

    step = traced(strategy, fn, iterator)
    assert step.sources == [InputSource("batch", ITERATOR, 0, 0), InputSource("batch", ITERATOR, 1, 0)]
    assert shapes(step) == [(8, 3), (8,)]
    assert step.name == "fn"


def test_each_next_of_a_step_is_another_batch(strategy, iterator):
    def fn(it):
        return next(it)["x"] - 2 * next(it)["x"]

    step = traced(strategy, fn, iterator)
    assert [(source.turn, source.leaf) for source in step.sources] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    first, second = np.ones((8, 3)), np.full((8, 3), 5.0)
    outputs, _ = step.split.worker([first, np.zeros(8), second, np.zeros(8)])
    np.testing.assert_array_equal(outputs[0], first - 2 * second)


def test_arguments_come_before_what_the_worker_has(strategy, iterator, resource):
    def fn(a, it, value, *, scale, training):
        assert training is True
        return a + value.value[0].sum() * scale + next(it)["x"].sum() + current_worker_index()

    step = traced(strategy, fn, np.float32(1), iterator, resource, scale=2.0, training=True)
    assert [source.kind for source in step.sources] == ["argument", "argument", "resource", "batch", "batch", "worker"]
    assert [source.number for source in step.sources] == [0, 1, RESOURCE, ITERATOR, ITERATOR, 0]
    assert shapes(step) == [(), (), (2,), (8, 3), (8,), ()]


def test_a_resource_is_the_same_each_time(strategy, resource):
    step = traced(strategy, lambda r: r.value[0] + r.value[0], resource)
    assert step.sources == [InputSource("resource", RESOURCE, 0)]


def test_an_iterator_cannot_be_begun_in_a_step(strategy):
    dataset = PerWorkerDataset(4, lambda dataset: pytest.fail("was begun"))
    with pytest.raises(ContextError, match="call it before"):
        traced(strategy, lambda d: next(iter(d)), dataset)


def test_the_workers_index():
    with pytest.raises(ContextError, match="on the coordinator"):
        current_worker_index()
    with context.entered(worker_index=3):
        assert current_worker_index() == 3


# Results.


def test_the_result_is_rebuilt_as_the_function_returned_it(strategy):
    def fn(x):
        return {"a": [x + 1, None], "b": ("text", x * 2), "c": 3}

    step = traced(strategy, fn, np.float32(1))
    outputs, sent = step.split.worker([np.float32(1)])
    assert sent == []
    assert step.result.rebuild(outputs) == {"a": [2.0, None], "b": ("text", 2.0), "c": 3}


def test_a_function_may_return_nothing(strategy):
    (v,) = made(strategy, 0.0)

    def fn(x):
        v.assign_add(x)

    step = traced(strategy, fn, np.float32(1))
    assert step.result.rebuild([]) is None
    assert step.written == [v]


# Variables.


def test_a_worker_reads_only_what_it_needs(strategy):
    w, moment, frozen = made(strategy, [1.0, 2.0], [0.0, 0.0], [3.0, 3.0])

    def fn(x):
        loss, (gradient,) = rx.value_and_grad(lambda: jnp.sum((w.value * x + frozen.value) ** 2), [w])()
        moment.assign(0.9 * moment.value + gradient)
        w.assign_sub(0.1 * moment.value)
        return loss

    step = traced(strategy, fn, np.float32(2))
    read = {step.variables[i].name for i in step.split.worker_inputs if i < len(step.variables)}
    assert read == {"v0", "v2"}
    assert {variable.name for variable in step.written} == {"v0", "v1"}
    assert all(step.split.updates)
    assert [leaf.aval.shape for leaf in step.split.sent] == [(2,)]
    server = {step.variables[i].name for i in step.split.server_inputs}
    assert server == {"v0", "v1"}


def test_a_function_that_is_no_training_runs_too(strategy):
    (count,) = made(strategy, 0)

    def fn():
        count.assign_add(1)
        return count.value

    step = traced(strategy, fn)
    assert step.sources == []
    assert step.written == [count]


def test_the_strategy_is_current(strategy):
    found = []
    traced(strategy, lambda: found.append(rx.get_strategy()))
    assert set(found) == {strategy}


def test_functions_of_the_strategy_run_inside(strategy):
    (w,) = made(strategy, 2.0)

    def fn(x):
        total = strategy.run(lambda x: x * w.value * rx.get_replica_context().num_replicas_in_sync, args=(x,))
        return strategy.reduce("mean", total, axis=None)

    step = traced(strategy, fn, np.float32(3))
    args = {"v0": np.float32(2)}
    outputs, _ = step.split.worker([*(args[v.name] for v in step.variables), np.float32(3)])
    assert outputs[0] == 6.0


def test_random_keys_stay_where_they_are(strategy):
    with strategy.scope():
        key = rx.Variable(jax.random.key(0), name="key")
    with pytest.raises(VariableError, match=r"'key' holds random keys.*key_data"):
        traced(strategy, lambda: jax.random.uniform(key.value))


def test_an_error_of_the_function_is_its_own(strategy):
    def fn(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        traced(strategy, fn, np.float32(1))
