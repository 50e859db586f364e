"""Scalars for TensorBoard: the training's in the folder of the estimator, an evaluation's in one of its own."""

from __future__ import annotations

import sys

import pytest

from replicax.estimator import Estimator, RunConfig
from tests.estimator.problems import X, Y, batches, estimator_of, jax_fn
from tests.events import scalars


def test_a_training_and_its_evaluations_are_written(alone, tmp_path):
    config = RunConfig(tmp_path, save_summary_steps=2, log_step_count_steps=2)
    estimator = Estimator(jax_fn, config=config, params={"rate": 0.05}).train(batches)
    found = scalars(tmp_path)
    assert [step for step, _ in found["loss"]] == [1, 3, 5]
    assert [value for _, value in found["loss"]] == pytest.approx(alone["jax"].losses[::2], rel=1e-5)
    assert [step for step, _ in found["global_step/sec"]] == [2, 4]
    results = estimator.evaluate(batches, name="again")
    assert scalars(tmp_path / "eval_again")["mae"] == [(5, pytest.approx(results["mae"]))]


def test_without_tensorboardx_nothing_is_written_and_nothing_fails(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    caplog.set_level("INFO", "replicax.estimator")
    estimator = estimator_of(
        "jax",
        tmp_path,
    ).train(lambda: (X, Y), steps=1)
    assert "No scalars are written for TensorBoard" in caplog.text
    assert estimator.evaluate(lambda: (X, Y))["global_step"] == 1
