from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.tensorflow.checkpoints.targets import Targets, child_of, names_in_list, own_variables, snake_case
from tests.migrate import zoo
from tests.tensorflow.checkpoints.small import dense_model


def test_names_are_the_objects_and_the_paths_of_variables():
    model, step = dense_model(3, names=("out",)), rx.Variable(0)
    targets = Targets({"model": model, "state": {"step": step}, "rate": 0.5, "note": "text"})
    assert list(targets.all) == [
        f"model/{model.name}/out/kernel", f"model/{model.name}/out/bias", "state/step", "rate"
    ]  # fmt: skip
    assert targets.named("model/0") is targets.of(model.layers[0].kernel)
    assert targets.of(rx.Variable(0)) is None


def test_variables_of_one_path_have_their_numbers():
    models = [dense_model(3, names=("out",)) for _ in range(2)]
    names = Targets({"a": models[:1], "b": models[1]}).all
    assert len(names) == 4


def test_children_are_items_attributes_and_layers():
    model = dense_model(3, 2)
    assert child_of({"a": 1}, "a") == 1
    assert child_of({7: "x"}, "7") == "x"
    assert child_of([5, 6], "1") == 6
    assert child_of([5, 6], "2") is None
    assert child_of(model, "layer_with_weights-1") is model.layers[1]
    assert child_of(model, "layer_with_weights-2") is None
    assert child_of(model.layers[0], "_kernel") is model.layers[0].kernel
    assert child_of(model.layers[0], "vars")[0] is model.layers[0].kernel
    assert child_of(model.layers, "dense_1") is model.layers[1]
    assert child_of(model, "call") is None


def test_a_property_that_raises_is_no_child():
    class Layer(keras.layers.Dense):
        @property
        def broken(self):
            raise RuntimeError("not yet")

    assert child_of(Layer(3), "broken") is None


def test_a_layers_own_variables_are_without_those_of_its_layers():
    model = zoo.subclassed(keras)
    zoo.called(model, zoo.inputs("subclassed"))
    block = model.blocks[0]
    assert [variable.name for variable in own_variables(block)] == ["scale"]
    assert own_variables(model) == []


@pytest.mark.parametrize(("name", "said"), [("LSTMCell", "lstm_cell"), ("Conv2D", "conv2d"), ("ReLU", "re_lu")])
def test_names_of_classes(name, said):
    assert snake_case(name) == said


def test_names_of_objects_in_a_list():
    dense = keras.layers.Dense
    assert names_in_list([dense(1), keras.layers.ReLU(), dense(2)]) == ["dense", "re_lu", "dense_1"]


def test_states_that_are_no_weights():
    model = zoo.dropout(keras)
    rest = list(Targets({"model": model}).without_weights())
    assert [np.asarray(target.variable).shape for target in rest] == [(2,)]
