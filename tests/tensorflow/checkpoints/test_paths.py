from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints.object_graph import VALUE
from replicax.tensorflow.checkpoints.paths import graph_of
from tests.migrate import restored, zoo
from tests.tensorflow.checkpoints.small import dense_model, numbers, write_graph


@pytest.mark.parametrize("name", ["fit_save_weights", "saved_model_keras", "manager"])
def test_a_model_and_an_optimizer_are_found_under_other_names(name):
    objects = restored.objects_for(name)
    extra = {"step": objects["step"]} if "step" in objects else {}
    rx.Checkpoint(net=objects["model"], opt=objects["optimizer"], **extra).restore(restored.path_of(name))
    assert restored.output_difference(name, objects["model"]) < 1e-5
    assert int(objects["optimizer"].iterations) > 0


def test_a_model_that_is_the_root_itself(tmp_path):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    net = Net()
    net(np.zeros((1, 4), "float32"))
    write_graph(tmp_path / "w", {"dense/kernel": numbers(4, 3), "dense/bias": numbers(3, start=5)})
    for checkpoint in (rx.Checkpoint(model=net), rx.Checkpoint(net)):
        net.dense.bias.assign(np.zeros(3))
        checkpoint.restore(tmp_path / "w")
        np.testing.assert_array_equal(np.asarray(net.dense.bias), numbers(3, start=5))


def test_attributes_lead_to_layers_of_equal_shape_whatever_their_order(tmp_path):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.second, self.first = keras.layers.Dense(4), keras.layers.Dense(4)

        def call(self, x):
            return self.second(self.first(x))

    net = Net()
    net(np.zeros((1, 4), "float32"))
    values = {}
    for i, name in enumerate(("first", "second")):
        values |= {f"model/{name}/kernel": numbers(4, 4, start=10 * i), f"model/{name}/bias": numbers(4, start=i)}
    write_graph(tmp_path / "w", values, {key: key.replace("model", "net") for key in values})
    rx.Checkpoint(model=net).restore(tmp_path / "w")
    assert [float(np.asarray(each.kernel)[0, 0]) for each in (net.first, net.second)] == [0.0, 10.0]


def test_a_shape_that_differs_is_an_error_even_if_it_need_not_be_strict():
    model = dense_model(3, 5)
    with pytest.raises(CheckpointError, match=r"dense.*kernel' has shape \[3, 5\], and .* \[3, 2\]"):
        rx.Checkpoint(model=model).restore(restored.path_of("tf_keras_mlp"), strict=False)


def test_the_bias_of_a_gru_with_the_other_kind_of_reset_is_explained():
    layers = [keras.layers.GRU(4, return_sequences=True, reset_after=False), keras.layers.GRU(3, reset_after=False)]
    model = keras.Sequential([keras.Input((5, 3)), *layers])
    with pytest.raises(CheckpointError, match="reset_after"):
        rx.Checkpoint(model=model).restore(restored.path_of("tf_keras_gru"))


def test_weights_that_keras_3_names_otherwise_are_found_by_their_shapes():
    model = zoo.conv(keras)
    status = rx.Checkpoint(model=model).restore(restored.path_of("tf_keras_conv"))
    status.assert_consumed()
    assert restored.output_difference("tf_keras_conv", model) < 1e-5


def test_the_states_of_random_generators_stay_as_they_are():
    model = restored.restored("tf_keras_dropout")["model"]
    assert restored.output_difference("tf_keras_dropout", model) < 1e-5
    status = rx.Checkpoint(model=zoo.dropout(keras)).restore(restored.path_of("tf_keras_dropout"))
    assert any("seed_generator_state" in note for note in status.notes)


def test_a_metric_in_a_model_needs_no_value(tmp_path):
    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.seen = keras.layers.Dense(3), keras.metrics.Mean(name="seen")

        def call(self, x):
            return self.dense(x)

    model = Counting()
    model(np.zeros((1, 4), "float32"))
    write_graph(tmp_path / "w", {"model/dense/kernel": numbers(4, 3), "model/dense/bias": numbers(3)})
    rx.Checkpoint(model=model).restore(tmp_path / "w").assert_consumed()
    np.testing.assert_array_equal(model.get_weights()[0], numbers(4, 3))


def test_names_that_are_paths_become_a_tree():
    graph = graph_of(["layers/dense/vars/0", "layers/dense/vars/1"])
    assert [graph.paths[node] for node in graph.variables] == ["layers/dense/vars/0", "layers/dense/vars/1"]
    assert {saved.name for saved in graph.variables.values()} == {VALUE}
