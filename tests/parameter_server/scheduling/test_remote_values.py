"""Results that are not there yet, and what a worker has of its own, seen from the coordinator."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

from replicax.errors import ArgumentError, ContextError
from replicax.parameter_server.compiling.recording import PytreeSpec
from replicax.parameter_server.scheduling.remote_values import (
    PerWorkerDataset,
    PerWorkerIterator,
    PerWorkerValues,
    RemoteValue,
    check_arguments,
)


def test_a_value_is_waited_for():
    value = RemoteValue()
    assert not value.is_ready
    assert repr(value) == "<RemoteValue waiting>"
    timer = threading.Timer(0.05, value._set_result, [{"a": np.float32(3), "b": None}])
    timer.start()
    assert value.fetch() == {"a": 3.0, "b": None}
    assert value.is_ready
    assert repr(value) == "<RemoteValue ready>"
    timer.join()


def test_get_gives_jax_arrays_once():
    value = RemoteValue()
    value._set_result({"a": np.arange(2), "b": "text"})
    found = value.get()
    assert isinstance(found["a"], jax.Array)
    assert found["b"] == "text"
    assert value.get() is found


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_waiting_can_have_an_end(timeout):
    with pytest.raises(TimeoutError, match="was not there after"):
        RemoteValue().fetch(timeout)


def test_an_error_is_raised_each_time():
    value = RemoteValue()
    value._set_error(ValueError("no"))
    for method in (value.fetch, value.get, value.fetch):
        with pytest.raises(ValueError, match="no"):
            method()
    assert repr(value) == "<RemoteValue failed>"


def test_a_result_that_is_not_there_yet_is_no_argument():
    check_arguments(((1, np.zeros(2)), {"a": None}))
    with pytest.raises(ArgumentError, match=r"coordinator\.fetch\(value\)"):
        check_arguments(((), {"a": [1, RemoteValue()]}))


def test_what_workers_have_is_not_on_the_coordinator():
    spec = jax.ShapeDtypeStruct((2,), np.float32)
    described = PytreeSpec(jax.tree.structure({"x": 0}), (spec,))
    iterator = PerWorkerIterator(1, PerWorkerDataset(0, lambda dataset: iterator), lambda kind, number: described)
    assert iterator.element_spec == {"x": spec}
    assert iter(iterator) is iterator
    with pytest.raises(ContextError, match="on the coordinator"):
        next(iterator)
    values = PerWorkerValues(3, lambda number: [number, 2 * number])
    with pytest.raises(ContextError, match=r"`fetch\(\)`"):
        _ = values.value
    assert values.fetch() == (3, 6)


def test_each_pass_has_an_iterator_of_its_own():
    made = []

    def make(dataset):
        made.append(dataset)
        return PerWorkerIterator(len(made), dataset, lambda kind, number: None)

    dataset = PerWorkerDataset(0, make)
    assert iter(dataset) is not iter(dataset)
    assert made == [dataset, dataset]
