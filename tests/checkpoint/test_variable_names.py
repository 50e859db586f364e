"""Which variables a checkpoint holds, and their names."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import variables_of
from replicax.errors import CheckpointError


class Layer:
    def __init__(self):
        self.w, self.b = rx.Variable([1.0]), rx.Variable(0.0)
        self.activation, self.size, self.table = np.tanh, 3, np.zeros(3)


class Network:
    def __init__(self):
        self.layers = [Layer(), Layer()]
        self.itself = self
        self.by_name = {"first": self.layers[0], "extra": rx.Variable(1)}


def test_names_are_the_way_to_the_variable():
    network = Network()
    found = variables_of({"net": network, "step": rx.Variable(0)})
    assert list(found) == [
        "net/layers/0/w",
        "net/layers/0/b",
        "net/layers/1/w",
        "net/layers/1/b",
        "net/by_name/extra",
        "step",
    ]
    assert found["net/layers/1/w"] is network.layers[1].w


def test_keras_variables_are_numbered():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
    optimizer = keras.optimizers.SGD(momentum=0.9)
    optimizer.build(model.trainable_variables)
    found = variables_of({"model": model, "optimizer": optimizer, "mean": keras.metrics.Mean()})
    assert found["model/0"] is model.variables[0]
    assert len([name for name in found if name.startswith("model/")]) == len(model.variables)
    assert len([name for name in found if name.startswith("optimizer/")]) == len(optimizer.variables)
    assert "mean/1" in found


def test_a_variable_shared_by_two_objects_is_stored_once():
    shared = rx.Variable(1.0)
    assert list(variables_of({"a": [shared], "b": shared})) == ["a/0"]


def test_an_object_without_variables_is_an_error():
    with pytest.raises(CheckpointError, match="no variable in table="):
        variables_of({"table": np.zeros(3)})


def test_a_key_that_is_no_name_is_an_error():
    with pytest.raises(CheckpointError, match=r"\(1, 2\)"):
        variables_of({"a": {(1, 2): rx.Variable(1.0)}})


def test_two_variables_of_one_name_are_an_error():
    with pytest.raises(CheckpointError, match="'a/1'"):
        variables_of({"a": {"1": rx.Variable(1.0), 1: rx.Variable(2.0)}})
