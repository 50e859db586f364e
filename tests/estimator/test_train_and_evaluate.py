"""`train_and_evaluate`: what each role does, and that the numbers are those of one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ClusterError, EstimatorError
from replicax.estimator import (
    BestExporter,
    Estimator,
    EstimatorSpec,
    EvalSpec,
    FinalExporter,
    LatestExporter,
    RunConfig,
    TrainSpec,
    train_and_evaluate,
)
from replicax.estimator.journal import checkpoints, noted_end

ROWS = 8
X = np.random.default_rng(0).normal(size=(4 * ROWS, 3)).astype("float32")
Y = X @ np.float32([1.0, -2.0, 0.5]) + 0.25
CLUSTER = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"], "ps": ["127.0.0.1:3"]}


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def model_fn(features, labels, mode):
    w, b = rx.Variable(np.zeros(3, np.float32), name="w"), rx.Variable(0.0, name="b")
    predictions = features @ w + b
    if mode == "infer":
        return EstimatorSpec(mode, predictions=predictions)

    def train_op(gradients):
        for gradient, variable in gradients:
            variable.assign_sub(0.1 * gradient)

    error = predictions - labels
    return EstimatorSpec(mode, loss=(error**2).mean(), train_op=train_op, eval_metric_ops={"mae": abs(error)})


def batches():
    while True:
        for begin in range(0, len(X), ROWS):
            yield X[begin : begin + ROWS], Y[begin : begin + ROWS]


def few_batches():
    return [(X[:ROWS], Y[:ROWS])] * 3


def rows():
    return [(X[:20], Y[:20]), (X[20:], Y[20:])]


def by_hand(steps: int) -> tuple[np.ndarray, float]:
    w, b = np.zeros(3), 0.0
    data = batches()
    for _ in range(steps):
        x, y = next(data)
        error = x @ w + b - y
        w, b = w - 0.2 * x.T @ error / ROWS, b - 0.2 * error.mean()
    return w, b


def loss_by_hand(steps: int) -> float:
    w, b = by_hand(steps)
    return float(np.mean((X @ w + b - Y) ** 2))


def made(model_dir: Path, **settings: Any) -> Estimator:
    return Estimator(model_fn, config=RunConfig(model_dir=model_dir, seed=0, save_checkpoints_steps=2, **settings))


def evaluations(estimator: Estimator) -> list[int]:
    return list(rx.estimator.read_eval_metrics(estimator.eval_dir()))


def eval_spec(**given: Any) -> EvalSpec:
    return EvalSpec(rows, **{"start_delay_secs": 0, "throttle_secs": 0, "idle_timeout_secs": 1.0} | given)


def exporters() -> list[Any]:
    features = rx.TensorSpec((None, 3), "float32")
    return [LatestExporter("latest", features, exports_to_keep=2), FinalExporter("final", features),
            BestExporter("best", features)]  # fmt: skip


def test_alone_it_evaluates_each_checkpoint_and_the_last_step_once(tmp_path):
    estimator = made(tmp_path)
    metrics, exports = train_and_evaluate(estimator, TrainSpec(batches, max_steps=5), eval_spec(exporters=exporters()))
    assert evaluations(estimator) == [2, 4, 5]
    assert metrics["global_step"] == 5
    np.testing.assert_allclose(metrics["loss"], loss_by_hand(5), rtol=1e-5)
    np.testing.assert_allclose(estimator.get_variable_value("w"), by_hand(5)[0], rtol=1e-5)
    w, b = by_hand(5)
    for path in exports:
        np.testing.assert_allclose(rx.load_export(path)(X), X @ w + b, rtol=1e-4, atol=1e-5)
    kept = {name: len(list((tmp_path / "export" / name).glob("1*"))) for name in ("latest", "final", "best")}
    assert kept == {"latest": 2, "final": 1, "best": 3}  # The loss falls with each.


def test_a_training_that_goes_on_and_one_that_has_ended(tmp_path):
    train_and_evaluate(made(tmp_path), TrainSpec(batches, max_steps=2), eval_spec())
    again = made(tmp_path)
    metrics, _ = train_and_evaluate(again, TrainSpec(batches, max_steps=5), eval_spec())
    assert evaluations(again) == [2, 4, 5]
    assert metrics["global_step"] == 5
    metrics, exports = train_and_evaluate(made(tmp_path), TrainSpec(batches, max_steps=5), eval_spec())
    assert metrics["global_step"] == 5  # Nothing is left to train; the result is still returned.
    assert exports == []


def test_data_that_ends_before_max_steps_ends_the_training(tmp_path):
    metrics, exports = train_and_evaluate(
        made(tmp_path), TrainSpec(few_batches, max_steps=9), eval_spec(exporters=exporters()[1])
    )
    assert metrics["global_step"] == 3
    assert len(exports) == 1
    assert exports[0] is not None


def test_the_throttle_leaves_checkpoints_out_but_not_the_last(tmp_path):
    estimator = made(tmp_path)
    train_and_evaluate(estimator, TrainSpec(batches, max_steps=7), eval_spec(throttle_secs=600, name="slow"))
    assert list(rx.estimator.read_eval_metrics(estimator.eval_dir("slow"))) == [2, 7]


def test_hooks_and_listeners_are_passed_on(tmp_path):
    told = []

    class Hook:
        def __init__(self, name):
            self.name = name

        def end(self, context):
            told.append((self.name, context.step))

    class Listener:
        def after_save(self, step):
            told.append(("saved", step))

    train = TrainSpec(batches, max_steps=2, hooks=[Hook("train")], saving_listeners=[Listener()])
    train_and_evaluate(made(tmp_path), train, eval_spec(hooks=[Hook("eval")]))
    assert sorted(told) == [("eval", 2), ("saved", 2), ("train", 2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Estimator:
    """The training of six steps on one device."""
    estimator = made(tmp_path_factory.mktemp("alone"), train_distribute=rx.OneDeviceStrategy("cpu:0"))
    return estimator.train(batches, max_steps=6)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("strategy", "replicas"),
    [
        (rx.MirroredStrategy, 2),
        (rx.FullyShardedStrategy, 2),
        (rx.CentralStorageStrategy, 2),
        (rx.MirroredStrategy, 8),
        *(
            pytest.param(strategy, replicas, marks=pytest.mark.nightly)
            for strategy in (rx.MirroredStrategy, rx.FullyShardedStrategy, rx.CentralStorageStrategy)
            for replicas in (1, 3, 8)
        ),
    ],
)
def test_under_a_strategy_the_parameters_are_those_of_one_device(tmp_path, alone, strategy, replicas):
    several = strategy([f"cpu:{index}" for index in range(replicas)])
    estimator = made(tmp_path, train_distribute=several, eval_distribute=several)
    metrics, _ = train_and_evaluate(estimator, TrainSpec(batches, max_steps=6), eval_spec(throttle_secs=600))
    for name in ("w", "b"):
        np.testing.assert_allclose(estimator.get_variable_value(name), alone.get_variable_value(name), rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"], loss_by_hand(6), rtol=1e-5)


def placed(monkeypatch, cluster: Any, job: str) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}}))


def test_a_chief_trains_and_an_evaluator_evaluates_each_checkpoint(tmp_path, monkeypatch):
    placed(monkeypatch, {"chief": ["127.0.0.1:1"]}, "chief")
    chief = made(tmp_path)
    train = TrainSpec(batches, max_steps=5)
    assert train_and_evaluate(chief, train, eval_spec()) == (None, [])
    assert evaluations(chief) == []
    assert noted_end(tmp_path) == 5
    placed(monkeypatch, {"chief": ["127.0.0.1:1"]}, "evaluator")
    evaluator = made(tmp_path)
    metrics, exports = train_and_evaluate(evaluator, train, eval_spec(exporters=exporters()[1]))
    assert evaluations(evaluator) == [2, 4, 5]
    np.testing.assert_allclose(metrics["loss"], loss_by_hand(5), rtol=1e-5)
    assert exports[0] is not None
    again = train_and_evaluate(made(tmp_path), train, eval_spec(exporters=exporters()[1]))
    assert again == (metrics, tuple(exports))
    assert len(list((tmp_path / "export" / "final").glob("1*"))) == 1


def test_an_evaluator_does_not_wait_for_ever(tmp_path, monkeypatch):
    placed(monkeypatch, {"chief": ["127.0.0.1:1"]}, "evaluator")
    with pytest.raises(EstimatorError, match=r"no new checkpoint has come for 0\.1 s.*; no checkpoint"):
        train_and_evaluate(made(tmp_path), TrainSpec(batches, max_steps=5), eval_spec(idle_timeout_secs=0.1))


@pytest.mark.parametrize("job", ["ps", "worker"])
def test_servers_serve(tmp_path, monkeypatch, job):
    placed(monkeypatch, CLUSTER, job)

    def serves():
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        train_and_evaluate(made(tmp_path, train_distribute=serves), TrainSpec(batches), eval_spec())
    one = rx.OneDeviceStrategy("cpu:0")
    with pytest.raises(ClusterError, match=r"serves a coordinator of parameter servers, but OneDeviceStrategy"):
        train_and_evaluate(made(tmp_path, train_distribute=one), TrainSpec(batches), eval_spec())
    assert checkpoints(tmp_path) == []


def test_workers_that_would_train_alone_are_refused(tmp_path, monkeypatch):
    placed(monkeypatch, {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "worker")
    estimator = made(tmp_path, train_distribute=rx.OneDeviceStrategy("cpu:0"))
    with pytest.raises(ClusterError, match="trains in this process alone, and the cluster has 2 that train"):
        train_and_evaluate(estimator, TrainSpec(batches), eval_spec())


@pytest.mark.parametrize(
    ("position", "given", "words"),
    [
        (0, None, r"`estimator` must be an `rx\.estimator\.Estimator`, got None"),
        (0, "estimator", "`estimator` must be an"),
        (1, {"max_steps": 3}, r"`train_spec` must be an `rx\.estimator\.TrainSpec`"),
        (1, EvalSpec(rows), r"`train_spec` must be an `rx\.estimator\.TrainSpec`"),
        (2, None, r"`eval_spec` must be an `rx\.estimator\.EvalSpec`, got None"),
        (2, TrainSpec(batches), r"`eval_spec` must be an `rx\.estimator\.EvalSpec`"),
    ],
)
def test_what_is_no_estimator_or_spec_is_refused(tmp_path, position, given, words):
    arguments: list[Any] = [made(tmp_path), TrainSpec(batches), eval_spec()]
    arguments[position] = given
    with pytest.raises(ArgumentError, match=words):
        train_and_evaluate(*arguments)
