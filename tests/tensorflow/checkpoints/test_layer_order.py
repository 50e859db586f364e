"""Layers that have only names: matched where one way is possible, refused where two are, never swapped."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints.layer_order import numbered
from tests.migrate import restored
from tests.migrate.bundles import write_bundle
from tests.tensorflow.checkpoints.small import dense_model, dense_tensors, numbers


def restore(tmp_path, tensors, model, **arguments):
    write_bundle(tmp_path / "model", tensors)
    return rx.Checkpoint(model=model).restore(tmp_path / "model", **arguments)


def kernels(model):
    return [float(np.asarray(layer.kernel)[0, 0]) for layer in model.layers]


def test_names_decide_whatever_the_order(tmp_path):
    model = dense_model(4, 4, names=("second", "first"))
    restore(tmp_path, dense_tensors("scope/first", "scope/second"), model)
    assert kernels(model) == [10.0, 0.0]


def test_shapes_that_only_one_layer_has_decide(tmp_path):
    tensors = dense_tensors("a") | {"b/kernel": numbers(4, 3), "b/bias": numbers(3)}
    model = dense_model(4, 3, names=("x", "y"))
    restore(tmp_path, tensors, model)
    np.testing.assert_array_equal(model.layers[1].kernel, tensors["b/kernel"])


@pytest.mark.parametrize("stored", [("dense", "dense_1", "dense_2"), ("dense_2", "dense_3", "dense_10")])
def test_layers_that_keras_numbered_are_matched_in_the_order_in_which_they_were_made(stored, tmp_path):
    model = dense_model(4, 4, 4)
    restore(tmp_path, dense_tensors(*stored), model)
    assert kernels(model) == [0.0, 10.0, 20.0]


def test_layers_of_the_same_shapes_and_other_names_are_refused(tmp_path):
    model = dense_model(4, 4, names=("x", "y"))
    before = kernels(model)
    with pytest.raises(CheckpointError, match="same shapes, and nothing says which belong together") as raised:
        restore(tmp_path, dense_tensors("a", "b"), model)
    assert "mapping={'a/bias': 'model/" in str(raised.value)
    assert kernels(model) == before


def test_layers_that_were_made_in_another_order_than_the_model_has_them_are_refused(tmp_path):
    later, earlier = (keras.layers.Dense(4) for _ in range(2))
    model = keras.Sequential([keras.Input((4,)), earlier, later])
    with pytest.raises(CheckpointError, match="nothing says which belong together"):
        restore(tmp_path, dense_tensors("dense_7", "dense_8"), model)


def test_a_number_that_is_the_same_by_chance_does_not_count(tmp_path):
    model = dense_model(4, 4)
    first, second = (layer.name for layer in model.layers)
    last = f"dense_{numbered(second)[1] + 1}"
    # The second of the checkpoint has the name of the second here, but is the first of two in its own model.
    restore(tmp_path, dense_tensors(second, last), model)
    assert kernels(model) == [0.0, 10.0]
    assert first != second


@pytest.mark.parametrize("name", ["tf_keras_twins", "keras3_twins"])
def test_layers_of_equal_shape_in_another_order_are_never_swapped(name):
    model = dense_model(4, 4, names=("second", "first"))
    before = kernels(model)
    with pytest.raises(CheckpointError, match="names say the opposite"):
        rx.Checkpoint(model=model).restore(restored.path_of(name))
    assert kernels(model) == before


def test_the_order_counts_where_names_say_nothing():
    model = restored.zoo.twins(keras)
    for layer, name in zip(model.layers, ("a", "b"), strict=True):
        layer.name = name
    rx.Checkpoint(model=model).restore(restored.path_of("tf_keras_twins"))
    assert restored.output_difference("tf_keras_twins", model) < 1e-5


def test_weights_of_one_shape_and_unknown_names_are_refused(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.LayerNormalization(name="norm")])
    with pytest.raises(CheckpointError, match="same shape, and nothing says which"):
        restore(tmp_path, {"norm/a": numbers(4), "norm/b": numbers(4)}, model)


def test_numbers_at_the_end_of_names():
    assert numbered("dense_12") == ("dense", 12)
    assert numbered("dense") == ("dense", 0)
    assert numbered("conv2d_transpose") == ("conv2d_transpose", 0)
