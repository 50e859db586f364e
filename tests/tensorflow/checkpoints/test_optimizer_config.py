from __future__ import annotations

import shutil

import h5py
import keras
import pytest

import replicax as rx
from replicax.errors import CheckpointError
from tests.migrate import restored, zoo

NADAM, AMSGRAD = "tf_keras_h5_whole_new_nadam", "tf_keras_h5_whole_legacy_amsgrad"


def objects(optimizer):
    model = zoo.mlp(keras)
    optimizer.build(model.trainable_variables)
    return {"model": model, "optimizer": optimizer}


@pytest.mark.parametrize("name", [NADAM, AMSGRAD])
def test_a_training_goes_on_with_what_the_file_says(name, mirrored):
    assert restored.resumed(name, mirrored(2)) < 1e-5


@pytest.mark.parametrize("is_built", [True, False])
def test_the_learning_rate_is_that_of_the_file(is_built):
    model, optimizer = zoo.mlp(keras), keras.optimizers.Adam(0.5, amsgrad=True)
    if is_built:
        optimizer.build(model.trainable_variables)
    rx.Checkpoint(model=model, optimizer=optimizer).restore(restored.path_of(AMSGRAD))
    assert float(optimizer.learning_rate) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"amsgrad": True, "epsilon": 1e-3}, "epsilon=1e-07, and the one here epsilon=0.001"),
        ({"amsgrad": True, "beta_1": 0.5}, "and the one here beta_1=0.5"),
        ({"amsgrad": True, "clipnorm": 1.0}, "clipnorm=None, and the one here clipnorm=1.0"),
        ({"amsgrad": True, "weight_decay": 0.1}, "weight_decay=0.0, and the one here weight_decay=0.1"),
    ],
)
def test_other_hyperparameters_are_refused_if_strict(arguments, problem, caplog):
    given = objects(keras.optimizers.Adam(0.5, **arguments))
    with pytest.raises(CheckpointError, match=problem):
        rx.Checkpoint(**given).restore(restored.path_of(AMSGRAD))
    rx.Checkpoint(**given).restore(restored.path_of(AMSGRAD), strict=False)
    assert problem in caplog.text


def test_another_class_is_refused():
    with pytest.raises(CheckpointError, match="in the checkpoint is Nadam, and the one here is SGD"):
        rx.Checkpoint(**objects(keras.optimizers.SGD(0.5))).restore(restored.path_of(NADAM), strict=False)


@pytest.mark.parametrize("config", ["{", "[]", '{"optimizer_config": {"config": 3}}'])
def test_a_damaged_configuration(config, tmp_path):
    path = shutil.copy(restored.path_of(AMSGRAD), tmp_path / "model.h5")
    given = objects(keras.optimizers.Adam(0.5, amsgrad=True))
    with h5py.File(path, "a") as file:
        del file.attrs["training_config"]
        file.attrs["training_config"] = config
    if config == "{":
        with pytest.raises(CheckpointError, match="cannot be read"):
            rx.Checkpoint(**given).restore(path)
    else:
        rx.Checkpoint(**given).restore(path)
        assert float(given["optimizer"].learning_rate) == 0.5
