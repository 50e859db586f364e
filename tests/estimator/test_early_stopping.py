"""Hooks that end a training by its evaluations, and the file in which these stand."""

from __future__ import annotations

import pytest

from replicax.errors import EstimatorError
from replicax.estimator import (
    Hook,
    make_early_stopping_hook,
    read_eval_metrics,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from replicax.estimator.scalars import note_evaluation
from tests.estimator.problems import X, Y, batches, estimator_of

# Each evaluation happens after the step of its number.
FALLING_THEN_RISING = [5.0, 4.0, 3.0, 3.5, 3.4, 3.3, 3.2, 3.1]


class Evaluations(Hook):
    def __init__(self, folder: str):
        self.folder = folder

    def after_step(self, context):
        value = FALLING_THEN_RISING[context.step - 1]
        note_evaluation(self.folder, {"loss": value, "score": -value, "global_step": context.step})


@pytest.mark.parametrize(
    ("make", "stops_at"),
    [
        (lambda e: stop_if_no_decrease_hook(e, "loss", 2, run_every_steps=1), 5),
        (lambda e: stop_if_no_increase_hook(e, "score", 3, run_every_steps=1), 6),
        (lambda e: stop_if_no_decrease_hook(e, "loss", 2, min_steps=7, run_every_steps=1), 7),
        (lambda e: stop_if_lower_hook(e, "loss", 3.5, run_every_steps=1), 3),
        (lambda e: stop_if_higher_hook(e, "score", 0.0, run_every_steps=1), 8),
        (lambda e: stop_if_higher_hook(e, "score", -3.7, min_steps=4, run_every_steps=2), 4),
        (lambda e: make_early_stopping_hook(e, lambda: True, run_every_steps=2), 2),
    ],
)
def test_a_training_ends_by_its_evaluations(tmp_path, make, stops_at):
    estimator = estimator_of("jax", tmp_path)
    hooks = [Evaluations(estimator.eval_dir()), make(estimator)]
    estimator.train(lambda: (X[:8], Y[:8]), steps=8, hooks=hooks)
    assert estimator.get_variable_value("global_step") == stops_at


def test_evaluations_are_read_by_step(tmp_path):
    estimator = estimator_of("jax", tmp_path)
    assert read_eval_metrics(estimator.eval_dir()) == {}
    results = {}
    for _ in range(2):
        estimator.train(batches, steps=2)
        found = estimator.evaluate(batches, name="again")
        results[found.pop("global_step")] = found
    assert read_eval_metrics(estimator.eval_dir("again")) == results
    assert list(results) == [2, 4]


def test_what_cannot_be_looked_at(tmp_path):
    estimator = estimator_of("jax", tmp_path)
    note_evaluation(estimator.eval_dir(), {"loss": 1.0, "global_step": 1})
    with pytest.raises(EstimatorError, match=r"no metric 'score'\. They have: \['loss'\]"):
        estimator.train(batches, hooks=[stop_if_lower_hook(estimator, "score", 1.0, run_every_steps=1)])
    with pytest.raises(EstimatorError, match="`should_stop_fn` is a function"):
        make_early_stopping_hook(estimator, True)
    with pytest.raises(EstimatorError, match="one of `run_every_secs` and `run_every_steps`"):
        make_early_stopping_hook(estimator, lambda: True, run_every_secs=None)


def test_an_evaluation_that_is_not_a_number_is_worse_than_any(tmp_path):
    estimator = estimator_of("jax", tmp_path)
    hook = stop_if_no_decrease_hook(estimator, "loss", 2, run_every_steps=1)
    for step, loss in ((1, float("nan")), (2, 5.0), (3, 4.0), (4, 3.0)):
        note_evaluation(estimator.eval_dir(), {"loss": loss, "global_step": step})
    estimator.train(lambda: (X[:8], Y[:8]), steps=4, hooks=[hook])
    assert estimator.get_variable_value("global_step") == 4
