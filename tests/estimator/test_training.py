"""A training of an estimator equals a plain loop on one device, under every strategy; and goes on where it was."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.contract.strategies import ALL
from tests.estimator.problems import MODELS, ROWS, TOLERANCE, X, batches, check_weights, estimator_of

QUICK = [("keras", "default"), ("keras", "mirrored_3"), ("jax", "mirrored_2"), ("keras", "fully_sharded_3")]
QUICK += [("keras", "central_2"), ("jax", "default")]
REST = [(model, name) for model in MODELS for name in ALL if (model, name) not in QUICK]


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("model", "name"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.nightly) for each in REST)]
)
def test_training_evaluation_and_prediction_are_those_of_one_device(alone, tmp_path, model, name):
    estimator = estimator_of(model, tmp_path, ALL[name]())
    estimator.train(batches)
    check_weights(estimator, model, alone[model].weights[len(ROWS)])
    found = estimator.evaluate(batches)
    assert found.pop("global_step") == len(ROWS)
    assert found == pytest.approx(alone[model].evaluated(len(ROWS)), rel=TOLERANCE * 10)
    predicted = np.stack([each["y"] for each in estimator.predict(batches)])
    np.testing.assert_allclose(predicted, alone[model].outputs(len(ROWS), X), rtol=TOLERANCE, atol=TOLERANCE * 10)


def test_a_training_goes_on_where_the_last_one_was(alone, tmp_path):
    data = list(batches())
    for done, steps in ((0, 2), (2, 1), (3, 2)):
        estimator_of("keras", tmp_path).train(functools.partial(iter, data[done:]), steps=steps)
    estimator = estimator_of("keras", tmp_path)
    assert estimator.get_variable_value("global_step") == len(ROWS)
    check_weights(estimator, "keras", alone["keras"].weights[len(ROWS)])
