"""Evaluating the checkpoints of a training, and exporting the models that deserve it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from replicax.checkpoint.checkpoint_follower import Follower, Found, Outcome, Progress, Rules, Visit, decide
from replicax.checkpoint.places import absolute
from replicax.errors import CheckpointError, EstimatorError
from replicax.estimator.exporters import Exporter
from replicax.estimator.journal import Evaluated, Journal, Metrics, checkpoints, noted_end
from replicax.estimator.specs import EvalSpec

if TYPE_CHECKING:
    from replicax.estimator.estimator import Estimator

GLOBAL_STEP = "global_step"
_log = logging.getLogger(__name__)


class CheckpointEvaluator:
    """Evaluates checkpoints of an estimator by an `EvalSpec`, calls the exporters, and notes both."""

    def __init__(self, estimator: Estimator, eval_spec: EvalSpec, max_steps: int | None):
        self._estimator, self._spec, self._max_steps = estimator, eval_spec, max_steps
        self.directory = absolute(estimator.model_dir)
        name = "eval" if eval_spec.name is None else f"eval_{eval_spec.name}"
        self.journal = Journal(self.directory / name)
        self.last: Evaluated | None = None

    def visit(self, found: Found) -> Outcome:
        """Evaluates a checkpoint, unless it has been deleted meanwhile."""
        try:
            self.evaluate(found)
        except (CheckpointError, OSError):
            if found in checkpoints(self.directory):
                raise
            _log.warning("Checkpoint %s was deleted before it could be evaluated.", found.path)
            return Outcome.GONE
        return Outcome.DONE

    def evaluate(self, found: Found, is_the_end: bool = False) -> Evaluated:
        """Evaluates a checkpoint, calls the exporters, and notes it when both are done."""
        metrics = checked_metrics(
            self._estimator.evaluate(
                self._spec.input_fn,
                steps=self._spec.steps,
                hooks=self._spec.all_hooks,
                checkpoint_path=str(found.path),
                name=self._spec.name,
            )
        )
        final = is_the_end or (self._max_steps is not None and metrics[GLOBAL_STEP] >= self._max_steps)
        exports = [self._export(exporter, found, metrics, final) for exporter in self._spec.all_exporters]
        return self._note(Evaluated(str(found.path), found.version, metrics, exports))

    def finish(self, found: Found) -> Evaluated:
        """Evaluates the last checkpoint of a training, or calls only the exporters that have waited for the end."""
        known = self.last
        if known is None or (known.checkpoint, known.version) != (str(found.path), found.version):
            return self.evaluate(found, is_the_end=True)
        if self._max_steps is not None and known.metrics[GLOBAL_STEP] >= self._max_steps:
            return known
        # The data has ended before `max_steps`: the checkpoint was evaluated like any other.
        exports = list(known.exports)
        for index, exporter in enumerate(self._spec.all_exporters):
            if exporter.only_at_the_end:
                exports[index] = self._export(exporter, found, known.metrics, True)
        return known if exports == [*known.exports] else self._note(known._replace(exports=exports))

    def _export(self, exporter: Exporter, found: Found, metrics: Metrics, final: bool) -> str | None:
        path = os.path.join(self._estimator.model_dir, "export", exporter.name)
        return exporter.export(self._estimator, path, str(found.path), metrics, final)

    def _note(self, entry: Evaluated) -> Evaluated:
        self.journal.add(entry)
        self.last = entry
        return entry


class EvaluateSaved:
    """A saving listener that evaluates checkpoints in the process that trains, at most one in `throttle_secs`."""

    def __init__(
        self, evaluator: CheckpointEvaluator, throttle_secs: float, clock: Callable[[], float] = time.monotonic
    ):
        self._evaluator, self._rules, self._clock = evaluator, Rules(throttle_s=throttle_secs), clock
        self._progress = Progress(0.0, 0.0)

    def after_save(self, global_step: int) -> None:
        """Evaluates what was saved, unless it is too soon; the end of the training evaluates the last one."""
        saved = next((each for each in checkpoints(self._evaluator.directory) if each.step == global_step), None)
        if saved is None:
            raise EstimatorError(f"There was no checkpoint of step {global_step} after it was saved.")
        now = self._clock()
        if isinstance(decide(self._rules, self._progress, [saved], now), Visit):
            self._progress = Progress(0.0, 0.0, self._progress.visits + 1, visit_began=now)
            self._evaluator.evaluate(saved)
        else:
            _log.info(
                "The checkpoint of step %d is not evaluated: the last evaluation began less than %g s ago.",
                global_step,
                self._rules.throttle_s,
            )


def follow(
    evaluator: CheckpointEvaluator,
    eval_spec: EvalSpec,
    max_steps: int | None,
    training_began: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Evaluated | None:
    """Evaluates the checkpoints of a training that runs elsewhere until it has ended; returns the last evaluation."""
    # By the clock of the files: a note of the end that is older is of an earlier training.
    began = time.time() if training_began is None else training_began
    directory, rules = evaluator.directory, rules_of(eval_spec, max_steps)
    # An evaluator before this one has evaluated these.
    done = [found for found in checkpoints(directory) if evaluator.journal.find(found)]
    follower = Follower(
        lambda: checkpoints(directory),
        evaluator.visit,
        rules,
        directory,
        done=done,
        last_step=lambda: noted_end(directory, since=began),
        clock=clock,
        sleep=sleep,
    )
    end = follower.run()
    if end.idle and max_steps is not None and noted_end(directory) is None:
        step = follower.progress.step
        raise EstimatorError(
            f"The evaluator of {directory} ends: {end.why}, and the training has not ended. It waited for step "
            f"{max_steps}; {'no checkpoint' if step is None else f'the checkpoint of step {step}'} was evaluated last. "
            "Look whether the chief still runs and writes into the same `model_dir`; EvalSpec(idle_timeout_secs=...) "
            "says how long to wait."
        )
    _log.info("The evaluator of %s ends: %s.", directory, end.why)
    there = checkpoints(directory)
    evaluator.last = evaluator.last or (evaluator.journal.find(there[-1]) if there else None)
    return evaluator.finish(there[-1]) if there and not end.idle else evaluator.last


def rules_of(eval_spec: EvalSpec, max_steps: int | None) -> Rules:
    """Returns when an evaluator looks for checkpoints and how long."""
    return Rules(
        start_delay_s=eval_spec.start_delay_secs,
        throttle_s=eval_spec.throttle_secs,
        idle_timeout_s=eval_spec.idle_timeout_secs,
        last_step=max_steps,
    )


def checked_metrics(metrics: object) -> Metrics:
    """Checks and returns the result of `Estimator.evaluate`, which users may override."""
    if not isinstance(metrics, Mapping):
        raise EstimatorError(f"`Estimator.evaluate` should return a dict of metrics, got {metrics!r:.100}.")
    if not metrics:
        raise EstimatorError("`Estimator.evaluate` should never return an empty dict: there is a loss at least.")
    if GLOBAL_STEP not in metrics:
        raise EstimatorError(f"`Estimator.evaluate` should return {GLOBAL_STEP!r} too, got {sorted(metrics)}.")
    return metrics
