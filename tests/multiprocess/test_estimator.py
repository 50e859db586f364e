"""Estimators on several workers: the numbers are those of one device, and all workers stop and save at one step."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import numpy as np
import pytest

import replicax as rx
from replicax.estimator import Hook, LoggingTensorHook
from tests.estimator.problems import NAMES, ROWS, TOLERANCE, Trained, X, batches, estimator_of
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess


class StopOnOneWorker(Hook):
    """Only the last worker wants to stop; and all are slow enough for the clock to say that it is time to save."""

    def __init__(self, wants: bool):
        self.wants = wants

    def after_step(self, context):
        time.sleep(0.02)
        if self.wants and context.steps_done == 80:
            context.request_stop()


def own_rows(input_context):
    """The first two of these batches: each worker gives rows of its own, for its only replica."""
    for x, y in itertools.islice(batches(), 2):
        rows = slice(input_context.input_pipeline_id, None, input_context.num_input_pipelines)
        yield x[rows], y[rows]


def worker(folder: str) -> dict[str, Any]:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    index = strategy.worker_index
    values: dict[str, Any] = {}
    for name, data in (("shared", batches), ("own", own_rows)):
        estimator = estimator_of("keras", f"{folder}/{name}", strategy).train(
            data, hooks=[LoggingTensorHook(at_end=True)]
        )
        values[name] = [estimator.get_variable_value(each).tolist() for each in NAMES["keras"]]
        values[f"{name} evaluated"] = estimator.evaluate(batches)
    values["predicted"] = [each["y"].tolist() for each in estimator.predict(batches)]
    estimator = estimator_of(
        "keras", f"{folder}/stopped", strategy, save_checkpoints_secs=0.1, keep_checkpoint_max=None
    )
    seen: list[int] = []
    estimator.train(
        lambda: (X[:8], X[:8, :2]),
        hooks=[StopOnOneWorker(wants=index == strategy.num_workers - 1)],
        max_steps=500,
        saving_listeners=[_Listener(seen)],
    )
    values["stopped"] = int(estimator.get_variable_value("global_step"))
    values["saved"] = seen
    return values


class _Listener:
    def __init__(self, seen: list[int]):
        self.seen = seen

    def before_save(self, global_step: int) -> None:
        self.seen.append(global_step)


@pytest.mark.nightly
def test_workers_train_evaluate_stop_and_save_as_one(tmp_path):
    results = run_workers(worker, 2, 1, folder=str(tmp_path))
    assert results[0] == results[1]
    found, alone = results[0], Trained("keras")
    for name, steps in (("shared", len(ROWS)), ("own", 2)):
        for value, expected in zip(found[name], alone.weights[steps], strict=True):
            np.testing.assert_allclose(value, expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
        evaluated = found[f"{name} evaluated"]
        assert evaluated.pop("global_step") == steps
        assert evaluated == pytest.approx(alone.evaluated(steps), rel=TOLERANCE * 10)
    np.testing.assert_allclose(found["predicted"], alone.outputs(2, X), rtol=1e-5, atol=1e-5)  # of the last one
    assert 80 <= found["stopped"] < 500
    assert found["saved"] == sorted(set(found["saved"]))
    assert found["saved"][-1] == found["stopped"]
    assert len(found["saved"]) > 1, "the clock has saved none before the end"
