"""The batches of input functions: each is checked, whatever strategy reads them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, BatchError
from replicax.estimator import Estimator, EstimatorSpec, RunConfig

X, Y = np.ones((8, 2), np.float32), np.ones((8, 1), np.float32)


def model_fn(features, labels, mode):
    outputs = keras.layers.Dense(1)(features["x"] if isinstance(features, dict) else features)
    if mode == "infer":
        return EstimatorSpec(mode, predictions=outputs)
    loss = keras.ops.mean((outputs - labels) ** 2)
    return EstimatorSpec(mode, loss=loss, optimizer=keras.optimizers.SGD(0.1))


@pytest.fixture(scope="module", params=[None, rx.OneDeviceStrategy], ids=["default", "one device"])
def estimator(request, tmp_path_factory) -> Estimator:
    strategy = request.param and request.param("cpu:0")
    config = RunConfig(train_distribute=strategy, eval_distribute=strategy, log_step_count_steps=None)
    made = Estimator(model_fn, tmp_path_factory.mktemp("estimator"), config)
    return made.train(lambda: (X, Y), steps=1)


def with_context(input_context: Any) -> Any:
    del input_context
    return [(X, Y[:1])]


CALLS = {
    "train": lambda estimator, input_fn: estimator.train(input_fn, steps=2),
    "evaluate": lambda estimator, input_fn: estimator.evaluate(input_fn),
    "predict": lambda estimator, input_fn: list(estimator.predict(input_fn)),
}


@pytest.mark.daily(15)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("input_fn", "words"),
    [
        (lambda: (X, Y[:4]), r"8 rows, leaf \[0\]; 4 rows, leaf \[1\]"),
        (lambda: (X, Y[:1]), r"8 rows, leaf \[0\]; 1 rows, leaf \[1\]"),
        (lambda: [(X, Y), (X, Y[:1])], r"Batch 1 of the dataset: the leaves disagree"),
        (lambda: [({"x": X, "z": X[:1]}, Y)], r"1 rows, leaf \[0\]\['z'\]"),
        (with_context, "the leaves disagree"),
        (lambda: [(X, Y), ({"x": X}, Y)], "Batch 1 differs in structure"),
        (lambda: [(X, Y), (X.astype(np.int32), Y)], "Batch 1 differs in structure, rank or dtype"),
    ],
)
def test_batches_that_disagree_are_refused(estimator, call, input_fn, words):
    with pytest.raises(BatchError, match=words):
        CALLS[call](estimator, input_fn)


@pytest.mark.parametrize("below", ["", "deeper/still"])
@pytest.mark.parametrize("by_config", [False, True])
def test_a_file_in_the_place_of_the_folder(tmp_path, below, by_config):
    (tmp_path / "file").write_text("x")
    path = tmp_path / "file" / below
    given = {"config": RunConfig(path)} if by_config else {"model_dir": path}
    with pytest.raises(ArgumentError, match=r"`model_dir` is the path of a folder, got .*file.* is a file"):
        Estimator(model_fn, **given)
