"""Estimators of compiled Keras models."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import EstimatorError
from replicax.estimator import Estimator, RunConfig, model_to_estimator
from tests.estimator.problems import FIRST, ROWS, TOLERANCE, X, Y, batches


def compiled(**arguments) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(2)])
    model.set_weights(list(FIRST.values()))
    given = {"optimizer": keras.optimizers.Adam(0.05), "loss": "mse", "metrics": ["mae"], **arguments}
    model.compile(**given)
    return model


@pytest.mark.daily(1)
@pytest.mark.parametrize("devices", [0, 3])
def test_a_model_trains_as_in_the_plain_loop_and_stays_as_it_is(alone, tmp_path, devices):
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(devices)]) if devices else None
    config = RunConfig(train_distribute=strategy, log_step_count_steps=None, save_summary_steps=None)
    model = compiled()
    before = [np.asarray(variable) for variable in model.variables]
    estimator = model_to_estimator(model, model_dir=tmp_path, config=config).train(batches)
    found = estimator.evaluate(batches)
    expected = alone["keras"].evaluated(len(ROWS))
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert found["mae"] == pytest.approx(expected["mae"], rel=1e-5)
    predicted = np.stack([each[model.layers[-1].name] for each in estimator.predict(lambda: X)])
    np.testing.assert_allclose(predicted, alone["keras"].outputs(len(ROWS), X), rtol=TOLERANCE, atol=1e-5)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(variable), value)


def test_the_training_begins_with_the_weights_of_the_model_and_goes_on_with_its_own(tmp_path):
    model = compiled(optimizer=keras.optimizers.SGD(0.0), metrics=[keras.metrics.MeanSquaredError(name="again")])
    model.set_weights([np.full(each.shape, 0.25, np.float32) for each in model.get_weights()])
    estimator = Estimator(keras_model=model, model_dir=tmp_path).train(lambda: (X, Y), steps=1)
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)
    found = estimator.evaluate(lambda: (X, Y))
    assert found == pytest.approx({**expected, "global_step": 1}, rel=1e-5)
    model.set_weights([0 * each for each in model.get_weights()])
    assert Estimator(keras_model=model, model_dir=tmp_path).evaluate(lambda: (X, Y)) == found


def test_a_model_with_two_inputs_and_outputs(tmp_path):
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    both = keras.layers.Dense(3)(keras.layers.Concatenate()([a, b]))
    outputs = {"one": keras.layers.Dense(2, name="one")(both), "two": keras.layers.Dense(1, name="two")(both)}
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile("adam", loss={"one": "mse", "two": "mae"}, metrics={"one": ["mae"], "two": ["mse"]})
    estimator = Estimator(keras_model=model, model_dir=tmp_path)
    data = ({"a": X[:8], "b": X[8:16]}, {"one": Y[:8], "two": Y[:8, :1]})
    estimator.train(lambda: data, steps=2)
    found = estimator.evaluate(lambda: data)
    assert {"loss", "one_mae", "two_mse"} <= set(found)
    assert found["loss"] == pytest.approx(found["one_loss"] + found["two_loss"], rel=1e-5)
    assert set(next(estimator.predict(lambda: data))) == {"one", "two"}


def test_a_file_of_a_model_will_do(tmp_path):
    path = tmp_path / "model.keras"
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.save(path)
    estimator = model_to_estimator(keras_model_path=path, model_dir=tmp_path / "run")
    assert estimator.train(lambda: (X, Y), steps=2).get_variable_value("global_step") == 2


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


def test_models_that_an_estimator_cannot_train(tmp_path):
    model = OwnStep()
    model.compile("sgd", "mse")
    with pytest.raises(EstimatorError, match="defines train_step itself"):
        Estimator(keras_model=model)
    with pytest.raises(EstimatorError, match="either `keras_model` or `keras_model_path`"):
        model_to_estimator()
    with pytest.raises(EstimatorError, match="`model_fn` or `keras_model`"):
        Estimator(lambda features: None, keras_model=compiled())


@pytest.mark.parametrize("name", ["dense_input", "input_1"])
def test_one_feature_for_one_input_needs_no_name_of_keras_3(tmp_path, name):
    model = compiled()
    functional = keras.Model(model.inputs[0], model.outputs[0])
    functional.compile("sgd", "mse")
    for each, folder in ((model, tmp_path / "sequential"), (functional, tmp_path / "functional")):
        estimator = Estimator(keras_model=each, model_dir=folder)
        estimator.train(lambda: ({name: X[:8]}, Y[:8]), steps=1)
        found = estimator.evaluate(lambda: ({name: X[:8]}, Y[:8]))
        assert found == estimator.evaluate(lambda: (X[:8], Y[:8]))
        assert len(list(estimator.predict(lambda: {name: X[:8]}))) == 8


def test_two_features_for_one_input_are_an_error(tmp_path):
    estimator = Estimator(keras_model=compiled(), model_dir=tmp_path)
    with pytest.raises(ValueError, match="inputs"):
        estimator.train(lambda: ({"a": X[:8], "b": X[:8]}, Y[:8]), steps=1)
