"""Evaluating the checkpoints of a training: in the same process, and in an evaluator beside it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import replicax as rx
from replicax.checkpoint.checkpoint_follower import Outcome
from replicax.errors import CheckpointError, EstimatorError
from replicax.estimator import EvalSpec, Exporter
from replicax.estimator.evaluating import CheckpointEvaluator, EvaluateSaved, checked_metrics, follow, rules_of
from replicax.estimator.journal import checkpoints, note_end
from tests.clock import Clock


def data():
    return ()


class Model:
    """An estimator as far as an evaluator knows it: the loss of a checkpoint is 1 by its step."""

    def __init__(self, model_dir: Path, on_evaluate: Any = lambda path: None):
        self.model_dir, self.on_evaluate = str(model_dir), on_evaluate
        self.calls: list[dict[str, Any]] = []

    def evaluate(self, input_fn: Any, **given: Any) -> dict[str, float]:
        self.on_evaluate(Path(given["checkpoint_path"]))
        self.calls.append({"input_fn": input_fn, **given})
        return {"loss": 1 / step_of(given["checkpoint_path"]), "global_step": step_of(given["checkpoint_path"])}

    @property
    def steps(self) -> list[int]:
        return [step_of(each["checkpoint_path"]) for each in self.calls]


class Noted(Exporter):
    """Notes what it is told; returns the step."""

    def __init__(self, name: str = "noted", only_at_the_end: bool = False):
        self._name, self.only_at_the_end, self.told = name, only_at_the_end, []

    @property
    def name(self) -> str:
        return self._name

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        assert export_path == f"{estimator.model_dir}/export/{self._name}"
        assert eval_result["global_step"] == step_of(checkpoint_path)
        self.told.append((step_of(checkpoint_path), is_the_final_export))
        return f"export-{step_of(checkpoint_path)}" if is_the_final_export or not self.only_at_the_end else None


def step_of(path: Any) -> int:
    return int(str(path).rpartition("-")[2])


def saved(directory: Path, *steps: int) -> None:
    checkpoint = rx.Checkpoint(v=rx.Variable(1.0))
    with rx.CheckpointManager(checkpoint, directory, checkpoint_name="model.ckpt", max_to_keep=None) as manager:
        for step in steps:
            manager.save(step)


def spec(**given: Any) -> EvalSpec:
    return EvalSpec(data, **{"start_delay_secs": 0, "throttle_secs": 0} | given)


def followed(model: Model, eval_spec: EvalSpec, max_steps: int | None, at: dict[float, Any] | None = None) -> Any:
    clock = Clock(at=at)
    evaluator = CheckpointEvaluator(model, eval_spec, max_steps)  # type: ignore[arg-type]
    return follow(evaluator, eval_spec, max_steps, clock=clock, sleep=clock.sleep)


def test_an_evaluation_is_what_the_spec_says_and_is_noted(tmp_path):
    saved(tmp_path, 5)
    model, exporter = Model(tmp_path), Noted()

    def hook():
        pass

    hook.end = hook  # type: ignore[attr-defined]
    evaluator = CheckpointEvaluator(model, spec(steps=3, name="test", hooks=[hook], exporters=exporter), 9)
    done = evaluator.evaluate(checkpoints(tmp_path)[0])
    path = str(tmp_path / "model.ckpt-5")
    assert model.calls == [{"input_fn": data, "steps": 3, "hooks": [hook], "checkpoint_path": path, "name": "test"}]
    assert (done.metrics, done.exports) == ({"loss": 0.2, "global_step": 5}, ["export-5"])
    assert exporter.told == [(5, False)]
    assert evaluator.last is done
    assert (tmp_path / "eval_test" / "followed.jsonl").is_file()


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({}, "should never return an empty dict"),
        ([("loss", 1.0)], "should return a dict of metrics"),
        (None, "should return a dict of metrics"),
        ({"loss": 1.0}, r"should return 'global_step' too, got \['loss'\]"),
    ],
)
def test_metrics_that_are_none_are_an_error(metrics, words):
    with pytest.raises(EstimatorError, match=words):
        checked_metrics(metrics)


@pytest.mark.parametrize(
    ("throttle", "times", "expected"),
    [
        (0, [0, 1, 2, 3], [1, 2, 3, 4]),
        (2, [0, 1, 2, 3], [1, 3, 4]),
        (10, [0, 1, 2, 3], [1, 4]),
        (10, [0, 10, 12, 21], [1, 2, 4]),
    ],
)
def test_in_the_same_process_evaluations_follow_checkpoints_with_the_throttle(tmp_path, throttle, times, expected):
    model, exporter, clock = Model(tmp_path), Noted(), Clock({})
    evaluator = CheckpointEvaluator(model, spec(exporters=[exporter]), 4)
    listener = EvaluateSaved(evaluator, throttle, clock)
    for step, now in enumerate(times, 1):
        saved(tmp_path, step)
        clock.now = now
        listener.after_save(step)
    last = evaluator.finish(checkpoints(tmp_path)[-1])
    assert model.steps == expected
    assert exporter.told == [(step, step == 4) for step in expected]
    assert (last.metrics["global_step"], last.exports) == (4, ["export-4"])


def test_a_saved_checkpoint_that_is_not_there_is_an_error(tmp_path):
    evaluator = CheckpointEvaluator(Model(tmp_path), spec(), 4)
    with pytest.raises(EstimatorError, match="There was no checkpoint of step 3 after it was saved"):
        EvaluateSaved(evaluator, 0).after_save(3)


def test_an_end_that_nobody_foresaw_still_exports_what_is_exported_at_the_end(tmp_path):
    """The data ends before `max_steps`, after the last checkpoint has been evaluated like any other."""
    saved(tmp_path, 1, 2)
    model, exporters = Model(tmp_path), [Noted("each"), Noted("last", only_at_the_end=True)]
    evaluator = CheckpointEvaluator(model, spec(exporters=exporters), None)
    listener = EvaluateSaved(evaluator, 0)
    listener.after_save(1)
    listener.after_save(2)
    last = evaluator.finish(checkpoints(tmp_path)[-1])
    assert last.exports == ["export-2", "export-2"]
    assert exporters[0].told == [(1, False), (2, False)]
    assert exporters[1].told == [(1, False), (2, False), (2, True)]
    assert model.steps == [1, 2]


def test_an_evaluator_follows_a_training_to_its_last_step(tmp_path):
    model, exporter = Model(tmp_path), Noted()
    at = {float(10 * step): lambda step=step: saved(tmp_path, step) for step in (1, 2, 3)}
    last = followed(model, spec(exporters=exporter), 3, at)
    assert model.steps == [1, 2, 3]
    assert exporter.told == [(1, False), (2, False), (3, True)]
    assert (last.metrics["global_step"], last.exports) == (3, ["export-3"])


def test_one_that_comes_back_evaluates_what_it_missed_once(tmp_path):
    def dies(path: Path) -> None:
        if step_of(path) == 2:
            raise KeyboardInterrupt

    saved(tmp_path, 1, 2, 3)
    with pytest.raises(KeyboardInterrupt):
        followed(Model(tmp_path, dies), spec(), 4)
    saved(tmp_path, 4)
    again = Model(tmp_path)
    assert followed(again, spec(), 4).metrics["global_step"] == 4
    assert again.steps == [2, 3, 4]
    third = Model(tmp_path)
    assert followed(third, spec(), 4).metrics["global_step"] == 4
    assert third.steps == []  # All is done; the last result is still returned.
    other = Model(tmp_path)
    followed(other, spec(name="other"), 4)
    assert other.steps == [1, 2, 3, 4]  # An evaluation on other data.


def test_an_end_before_max_steps_is_heard_if_it_is_of_this_training(tmp_path):
    saved(tmp_path, 1)
    note_end(tmp_path, 1)
    model, exporter = Model(tmp_path), Noted(only_at_the_end=True)
    at = {5.0: lambda: saved(tmp_path, 2), 6.0: lambda: note_end(tmp_path, 2)}
    (tmp_path / "training_ended.json").write_text('{"global_step": 1, "time": 1.0}')  # of an earlier training
    last = followed(model, spec(exporters=exporter), 9, at)
    assert model.steps == [1, 2]
    assert last.exports == ["export-2"]
    assert exporter.told[-1] == (2, True)


@pytest.mark.parametrize(("steps", "seen"), [((), "no checkpoint"), ((1, 2), "the checkpoint of step 2")])
def test_a_training_that_died_is_not_waited_for_for_ever(tmp_path, steps, seen):
    saved(tmp_path, *steps) if steps else None
    with pytest.raises(EstimatorError, match=rf"no new checkpoint has come for 30 s.*waited for step 9; {seen} was"):
        followed(Model(tmp_path), spec(idle_timeout_secs=30), 9)


def test_without_max_steps_waiting_in_vain_is_the_end(tmp_path):
    saved(tmp_path, 1)
    exporter = Noted(only_at_the_end=True)
    last = followed(Model(tmp_path), spec(idle_timeout_secs=30, exporters=exporter), None)
    assert last.metrics["global_step"] == 1
    assert exporter.told == [(1, False)]  # Nobody knows whether it was the end.
    assert followed(Model(tmp_path / "none"), spec(idle_timeout_secs=30), None) is None


def test_a_checkpoint_that_is_deleted_meanwhile_is_left_out_and_a_bad_one_is_an_error(tmp_path, caplog):
    import shutil

    saved(tmp_path, 1, 2)

    def deleted(path: Path) -> None:
        if step_of(path) == 1:
            shutil.rmtree(path)
            raise CheckpointError("gone")

    model = Model(tmp_path, deleted)
    with caplog.at_level(logging.WARNING):
        followed(model, spec(), 2)
    assert model.steps == [2]
    assert "model.ckpt-1 was deleted before it could be evaluated" in caplog.text

    def bad(path: Path) -> None:
        raise CheckpointError("does not fit")

    evaluator = CheckpointEvaluator(Model(tmp_path, bad), spec(), 2)
    with pytest.raises(CheckpointError, match="does not fit"):
        evaluator.visit(checkpoints(tmp_path)[0])
    assert CheckpointEvaluator(Model(tmp_path), spec(), 2).visit(checkpoints(tmp_path)[0]) is Outcome.DONE


def test_the_rules_are_those_of_the_spec():
    rules = rules_of(EvalSpec(data), 7)
    assert (rules.start_delay_s, rules.throttle_s, rules.idle_timeout_s, rules.last_step) == (120, 600, 3600, 7)
