from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints.names import grouped
from tests.migrate import restored, zoo
from tests.tensorflow.checkpoints.small import dense_model


def test_layers_of_tensorflow_1_with_their_scope_and_momentum():
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(4)]
    )  # fmt: skip
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
    path = restored.path_of("saver_v1_layers")
    rx.Checkpoint(model=model, optimizer=optimizer).restore(path).assert_consumed()
    read = rx.checkpoint.tensorflow.open_checkpoint(path).read
    np.testing.assert_array_equal(np.asarray(model.layers[2].kernel), read("tower/dense_1/kernel"))
    variance = np.asarray(model.layers[1].moving_variance)
    np.testing.assert_array_equal(variance, read("tower/batch_normalization/moving_variance"))
    slot = next(v for v in optimizer.variables if v.path.endswith("gamma_momentum"))
    expected = read("tower/batch_normalization/gamma/Momentum") * np.float32(-0.1)
    np.testing.assert_array_equal(np.asarray(slot), expected)


def test_variables_of_plain_objects_have_the_names_of_tensorflow_1():
    variables = {f"part_{i}": rx.Variable(np.zeros((i + 2, 3), "float32")) for i in range(3)}
    rx.Checkpoint(variables).restore(restored.path_of("saver_sharded"))
    read = rx.checkpoint.tensorflow.open_checkpoint(restored.path_of("saver_sharded")).read
    for name, variable in variables.items():
        np.testing.assert_array_equal(np.asarray(variable.value), read(name))


def test_an_hdf5_file_of_one_model_is_not_given_to_two():
    with pytest.raises(CheckpointError, match="the layers of one model, and there are 2 here"):
        rx.Checkpoint(a=zoo.mlp(keras), b=zoo.mlp(keras)).restore(restored.path_of("tf_keras_legacy_h5_mlp"))


def test_layers_in_an_hdf5_file_that_were_renamed_and_moved_are_refused():
    model = dense_model(3, 2, names=("dense_9", "dense_8"))
    rx.Checkpoint(model=model).restore(restored.path_of("tf_keras_legacy_h5_mlp"))  # Their shapes differ.
    other = dense_model(3, 3, 2)
    before = other.get_weights()
    with pytest.raises(CheckpointError, match="Only in the objects"):
        rx.Checkpoint(model=other).restore(restored.path_of("tf_keras_legacy_h5_mlp"))
    for a, b in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_tensors_are_layers_by_their_names():
    first, second = grouped(["model/a/kernel:0", "b/bias", "model/a/bias:0"])
    assert (first.name, first.label, dict(first.tensors)) == (
        "a", "model/a", {"kernel": "model/a/kernel:0", "bias": "model/a/bias:0"}
    )  # fmt: skip
    assert dict(second.tensors) == {"bias": "b/bias"}
