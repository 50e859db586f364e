"""Checkpoints of Keras 3 on TensorFlow, whose weights have the names of the optimizer that refers to them."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints import open_checkpoint
from tests.migrate import restored, zoo
from tests.tensorflow.checkpoints.small import dense_model, numbers, write_graph

BESIDE = "keras3_beside"
LEFT_OUT = {"opt*": None, "epoch": None, "extra*": None}


@pytest.fixture
def model():
    return zoo.mlp(keras)


def is_restored(model):
    return restored.output_difference(BESIDE, model) < 1e-5


@pytest.mark.parametrize("name", ["net", "model", "network"])
@pytest.mark.parametrize("more", [{}, {"opt": None}, {"opt/_iterations": None}])
def test_leaving_out_the_optimizer_leaves_the_model(name, more, model):
    mapping = {**LEFT_OUT, **more}
    status = rx.Checkpoint(**{name: model}).restore(restored.path_of(BESIDE), mapping=mapping)
    status.assert_consumed()
    assert is_restored(model)


@pytest.mark.parametrize("path", ["net", "net/_functional/_operations/1", "opt/_trainable_variables/0"])
def test_a_mapping_from_the_path_of_the_model(path, model):
    value = model if path == "net" else model.layers[0] if path.startswith("net") else model.layers[0].kernel
    rx.Checkpoint(mine=value).restore(restored.path_of(BESIDE), mapping={path: "mine"}, strict=False)
    with np.load(restored.FIXTURES / BESIDE / "model.npz") as stored:
        np.testing.assert_array_equal(model.get_weights()[0], stored["weight_0"])


def test_weights_are_called_by_the_path_of_the_model():
    checkpoint = open_checkpoint(restored.path_of(BESIDE))
    shown = [checkpoint.shown(name) for name in checkpoint.tensors]
    assert not [name for name in shown if "_trainable_variables" in name]
    assert len([name for name in shown if name.startswith("net/")]) == 4
    with pytest.raises(CheckpointError, match="'net/_functional/_operations/1/_kernel' float32"):
        rx.Checkpoint(epoch=rx.Variable(0)).restore(restored.path_of(BESIDE))


def test_a_weight_may_be_left_out_by_its_name_in_the_optimizer(model):
    mapping = {**LEFT_OUT, "opt/_trainable_variables/0": None}
    with pytest.raises(CheckpointError, match=r"Only in the objects: \s+'net/.*kernel'"):
        rx.Checkpoint(net=model).restore(restored.path_of(BESIDE), mapping=mapping)


def test_leaving_out_counters_does_not_decide_whether_the_model_is_found(model):
    optimizer = restored.optimizer_for("adam")
    optimizer.build(model.trainable_variables)
    status = rx.Checkpoint(model=model, optimizer=optimizer).restore(restored.path_of(BESIDE), strict=False)
    assert is_restored(model)
    status.assert_existing_objects_matched()
    assert int(optimizer.iterations) == 1
    assert np.abs(np.asarray(optimizer.variables[2])).max() > 0


def test_of_two_models_the_one_with_the_same_shapes_is_taken(tmp_path):
    values = {}
    for name, size in (("first", 3), ("second", 5)):
        for i in range(2):
            values[f"{name}/layer_with_weights-{i}/kernel"] = numbers(size, size)
            values[f"{name}/layer_with_weights-{i}/bias"] = numbers(size)
    model = dense_model(5, 5, inputs=5)
    rx.Checkpoint(net=model).restore(write_graph(tmp_path / "w", values), strict=False)
    np.testing.assert_array_equal(model.get_weights()[0], numbers(5, 5))


@pytest.mark.parametrize("kind", ["strict", "partial"])
def test_a_model_that_gets_no_weight_is_an_error(kind, tmp_path):
    path = write_graph(tmp_path / "w", {"step": np.array(3)})
    step = rx.Variable(0)
    with pytest.raises(CheckpointError, match="No weight of 'model' is in the checkpoint"):
        rx.Checkpoint(model=dense_model(3), step=step).restore(path, **{kind: kind == "partial"})
    assert int(step.numpy()) == 0


def test_one_of_two_models_that_gets_no_weight_is_named(tmp_path, caplog):
    values = {"body/layer_with_weights-0/kernel": numbers(4, 3), "body/layer_with_weights-0/bias": numbers(3)}
    path = write_graph(tmp_path / "w", values)
    body = dense_model(3)
    with caplog.at_level(logging.WARNING):
        rx.Checkpoint(body=body, head=dense_model(2, inputs=3)).restore(path, strict=False)
    np.testing.assert_array_equal(body.get_weights()[0], numbers(4, 3))
    assert "No weight of 'head' is in the checkpoint" in caplog.text


def test_the_slots_of_an_optimizer_go_by_its_name_too():
    name = "opt_tf_keras_legacy_adam"
    for mapping in ({"optimizer*": None}, {"optimizer": None}):
        model = zoo.mlp(keras)
        rx.Checkpoint(model=model).restore(restored.path_of(name), mapping=mapping).assert_consumed()
        assert restored.output_difference(name, model) < 1e-5
