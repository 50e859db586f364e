"""Whole jobs of `train_and_evaluate`: workers that train in step, and the example as a reader would start it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replicax as rx
from replicax.estimator import RunConfig, TrainSpec, train_and_evaluate
from tests.estimator.test_train_and_evaluate import batches, eval_spec, evaluations, made, rows

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "estimator_mnist.py"


def trained(folder: str, steps: int) -> dict[str, Any]:
    """What each worker does; roles choose the strategy."""
    estimator, saved = made(Path(folder)), []

    class Listener:
        def after_save(self, step):
            saved.append(step)

    train = TrainSpec(batches, max_steps=steps, saving_listeners=[Listener()])
    result = train_and_evaluate(estimator, train, eval_spec())
    strategy = estimator.config.training_strategy()
    weights = {name: estimator.get_variable_value(name).tolist() for name in ("w", "b")}
    workers, chief = strategy.num_workers, RunConfig().is_chief
    return {"result": result, "workers": workers, "chief": chief, "weights": weights, "saved": saved}


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_workers_train_what_one_device_does_and_an_evaluator_sees_all_of_it(tmp_path, monkeypatch):
    answers = rx.testing.run_workers(trained, workers=2, folder=str(tmp_path / "two"), steps=6)
    assert [answer["chief"] for answer in answers] == [True, False]
    assert [answer["workers"] for answer in answers] == [2, 2]
    assert [answer["saved"] for answer in answers] == [[2, 4, 6], []]  # Listeners are the chief's.
    assert [answer["result"] for answer in answers] == [[None, []]] * 2
    alone = made(tmp_path / "alone").train(batches, max_steps=6)
    for answer in answers:
        for name, value in answer["weights"].items():
            np.testing.assert_allclose(value, alone.get_variable_value(name), rtol=1e-6)
    cluster = '{"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "evaluator", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    evaluator = made(tmp_path / "two")
    metrics, _ = train_and_evaluate(evaluator, TrainSpec(batches, max_steps=6), eval_spec())
    assert evaluations(evaluator) == [2, 4, 6]
    assert metrics["global_step"] == 6


def results(*options: str) -> dict[str, float]:
    """Runs the example with few steps, and returns what it reports."""
    command = [sys.executable, *options, str(EXAMPLE), "--steps", "90", "--save-steps", "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: float(value) for name, value in re.findall(r"RESULT (\w+) ([\d.]+)", done.stdout)}


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize(
    "roles",
    [
        pytest.param("--workers 2 --evaluator", marks=pytest.mark.nightly),
        pytest.param("", marks=pytest.mark.nightly),
        pytest.param("--ps 1 --workers 2", marks=pytest.mark.nightly),
    ],
)
def test_the_example_learns_in_every_role(roles, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = results(*(["-m", "replicax", "run", *roles.split()] if roles else []))
    assert found.pop("estimator_accuracy") > 0.9
    assert found == {"estimator_evaluations": 3.0, "estimator_checkpoints": 3.0}


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_on_parameter_servers_one_step_after_the_other_is_what_one_device_does(tmp_path):
    with rx.testing.local_cluster(workers=2, servers=1), rx.ParameterServerStrategy(max_staleness=0) as strategy:
        estimator = made(tmp_path / "served", train_distribute=strategy)
        metrics, _ = train_and_evaluate(estimator, TrainSpec(batches, max_steps=6), eval_spec())
    assert evaluations(estimator) == [2, 4, 6]
    alone = made(tmp_path / "alone").train(batches, max_steps=6)
    for name in ("w", "b"):
        np.testing.assert_allclose(estimator.get_variable_value(name), alone.get_variable_value(name), rtol=1e-6)
    np.testing.assert_allclose(metrics["loss"], alone.evaluate(rows)["loss"], rtol=1e-6)
