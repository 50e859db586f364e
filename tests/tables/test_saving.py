"""Tables in files are the same for any number of devices."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import replicax as rx
from tests.tables import problem
from tests.tables.problem import mirrored

DATA = problem.batches("dense", problem.spread_ids)


def made(replicas: int, steps: int) -> problem.Model:
    with mirrored(replicas).scope():
        model = problem.Model(rx.keras.DistributedEmbedding(problem.configs("adam", "mean")))
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    go_on(model, 0, steps)
    return model


def go_on(model: problem.Model, first: int, end: int) -> dict[str, np.ndarray]:
    for inputs, weights, targets in DATA[first:end]:
        model.train_on_batch(model.layer.preprocess(inputs, weights), targets)
    return {name: np.asarray(table) for name, table in model.layer.get_embedding_tables().items()}


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["weights", "checkpoint"])
def test_training_goes_on_from_a_file_on_another_number_of_devices(how: str, tmp_path: Path):
    model = made(8, 2)
    path = str(tmp_path / "saved.weights.h5")
    if how == "weights":
        model.save_weights(path)
    else:
        path = rx.Checkpoint(model=model).write(tmp_path / "checkpoint")
    wanted = go_on(model, 2, 3)
    for replicas in (1, 3):
        other = made(replicas, 1)
        if how == "weights":
            other.load_weights(path)
        else:
            rx.Checkpoint(model=other).read(path)
        for name, table in go_on(other, 2, 3).items():
            np.testing.assert_allclose(table, wanted[name], rtol=1e-6, atol=1e-6)


def test_a_table_is_written_in_the_order_of_the_ids():
    layer = made(3, 0).layer
    rows = np.arange(problem.ROWS * problem.COLUMNS, dtype="float32").reshape(problem.ROWS, problem.COLUMNS)
    store: dict[str, np.ndarray] = {}
    layer.save_own_variables(store)
    layer.load_own_variables({**store, "large": rows})
    np.testing.assert_array_equal(layer.get_embedding_tables()["large"], rows)
    many = layer({"many": [[1], [2]], "one": [np.array([5, -1]), np.zeros((2, 2), int)]})["one"][0]
    np.testing.assert_array_equal(many, rows[[5, -1]])


def test_a_table_of_another_shape_is_refused():
    layer = made(2, 0).layer
    with pytest.raises(rx.errors.ArgumentError, match=r"shape \(37, 4\), the value for it \(3, 4\)"):
        layer.load_own_variables({"large": np.zeros((3, 4))})


def test_a_layer_is_made_again_of_its_configuration():
    layer = made(2, 0).layer
    again = type(layer).from_config(keras.saving.serialize_keras_object(layer)["config"])
    assert again.get_config() == layer.get_config()
