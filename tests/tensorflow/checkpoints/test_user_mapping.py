from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, CheckpointError
from tests.migrate import restored
from tests.migrate.bundles import write_bundle
from tests.tensorflow.checkpoints.small import dense_model, dense_tensors


@pytest.fixture
def path(tmp_path):
    write_bundle(tmp_path / "model", dense_tensors("a", "b"))
    return tmp_path / "model"


@pytest.fixture
def model():
    return dense_model(4, 4, names=("x", "y"))


def kernels(model):
    return [float(np.asarray(layer.kernel)[0, 0]) for layer in model.layers]


def test_names_patterns_and_variables(path, model):
    rx.Checkpoint(model=model).restore(
        path, mapping={"a/*": f"model/{model.name}/y/*", "b/*": f"model/{model.name}/x/*"}
    )
    assert kernels(model) == [10.0, 0.0]
    by_variable = {"a/kernel": model.layers[0].kernel, "a/bias": model.layers[0].bias}
    rx.Checkpoint(model=model).restore(path, mapping=by_variable)  # Only one is left, so that it is certain.
    assert kernels(model) == [0.0, 10.0]


def test_a_function(path, model):
    layers = dict(zip("ab", model.layers, strict=True))
    rx.Checkpoint(model=model).restore(path, mapping=lambda name: getattr(layers[name[0]], name[2:]))
    assert kernels(model) == [0.0, 10.0]


def test_none_leaves_out(path):
    model = dense_model(4, names=("x",))
    status = rx.Checkpoint(model=model).restore(path, mapping={"b/*": None})
    assert kernels(model) == [0.0]
    assert "'b/kernel' in the checkpoint was left out: the mapping leaves it out." in status.notes


def test_an_object_stands_for_all_below_it():
    left, right = restored.zoo.mlp(keras), restored.zoo.mlp(keras)
    rx.Checkpoint(left=left, right=right).restore(
        restored.path_of("tf_keras_mlp"), mapping={"model": right}, strict=False
    )
    assert restored.output_difference("tf_keras_mlp", right) < 1e-5
    assert restored.output_difference("tf_keras_mlp", left) > 1e-3
    rx.Checkpoint(left=left, right=right).restore(
        restored.path_of("tf_keras_mlp"), mapping={"model": "left"}, strict=False
    )
    assert restored.output_difference("tf_keras_mlp", left) < 1e-5


def test_an_estimator_of_tensorflows_becomes_a_model_with_its_optimizer():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adagrad(0.5)
    optimizer.build(model.trainable_variables)
    first, last = (f"model/{model.name}/{layer.name}/*" for layer in model.layers)
    path = restored.path_of("estimator_dnn")
    mapping = {"dnn/hiddenlayer_0/*": first, "dnn/logits/*": last}
    rx.Checkpoint(model=model, optimizer=optimizer).restore(path, mapping=mapping).assert_consumed()
    read = rx.checkpoint.tensorflow.open_checkpoint(path).read
    np.testing.assert_array_equal(model.get_weights()[0], read("dnn/hiddenlayer_0/kernel"))
    slot = read("training/Adagrad/dnn/logits/kernel/accumulator")
    np.testing.assert_array_equal(np.asarray(optimizer.variables[4]), slot)
    assert int(optimizer.iterations) == 4


@pytest.mark.parametrize(
    ("mapping", "error", "said"),
    [
        (3, ArgumentError, "a dict or a function"),
        ({3: "x"}, ArgumentError, "names in the checkpoint"),
        (
            {"c/kernel": None},
            CheckpointError,
            "'c/kernel', which the checkpoint .* lacks. Did you mean 'b/kernel'",
        ),
        ({"a/kernel": "model/x/weights"}, CheckpointError, "no variable of the objects"),
        ({"a/kernel": rx.Variable}, CheckpointError, "no variable of the objects"),
    ],
)
def test_what_is_on_neither_side_is_an_error(mapping, error, said, path, model):
    with pytest.raises(error, match=said):
        rx.Checkpoint(model=model).restore(path, mapping=mapping)


def test_two_tensors_for_one_variable_are_an_error(path, model):
    bias = model.layers[0].bias
    with pytest.raises(CheckpointError, match="could be 'a/bias' or 'b/bias'"):
        rx.Checkpoint(model=model).restore(path, mapping={"*/bias": bias})


def test_a_pattern_speaks_of_variables_and_their_slots_follow():
    objects = restored.objects_for("saver_adam")
    model, optimizer = objects["model"], objects["optimizer"]
    first, last = (f"model/{model.name}/{layer.name}/*" for layer in model.layers)
    path = restored.path_of("saver_adam")
    rx.Checkpoint(**objects).restore(path, mapping={"dense/*": first, "dense_1/*": last}).assert_consumed()
    assert restored.output_difference("saver_adam", model) < 1e-5
    slot = rx.checkpoint.tensorflow.open_checkpoint(path).read("dense/kernel/Adam")
    np.testing.assert_array_equal(np.asarray(optimizer.variables[2]), slot)
