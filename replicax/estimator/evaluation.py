"""One call of `Estimator.evaluate`."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from replicax.estimator.agreed_action import together
from replicax.estimator.basic_hooks import steps_left
from replicax.estimator.built_model import GLOBAL_STEP, BuiltModel
from replicax.estimator.hook_list import Hooks
from replicax.estimator.hooks import HookContext
from replicax.estimator.loops import run_steps
from replicax.estimator.run_config import RunConfig
from replicax.estimator.scalars import ScalarWriter, note_evaluation
from replicax.estimator.steps import ModelSteps
from replicax.program import function
from replicax.typing import PyTree

_log = logging.getLogger("replicax.estimator")
_PENDING = 64  # Values of so many steps are kept on the devices before they are waited for.


class WeightedMeans:
    """The means of values over batches of different numbers of rows, in double precision."""

    def __init__(self, summed: Sequence[str] = ()):
        self._summed = frozenset(summed)  # Names of values that belong to whole batches: each batch counts once.
        self._pending: list[tuple[Mapping[str, jax.Array], jax.Array]] = []
        self._totals: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def add(self, values: Mapping[str, jax.Array], rows: jax.Array) -> None:
        """Adds the values of one batch; it is not waited for."""
        self._pending.append((values, rows))
        if len(self._pending) >= _PENDING:
            self._settle()

    def _settle(self) -> None:
        for values, rows in self._pending:
            for name, value in values.items():
                weight = 1.0 if name in self._summed else float(np.asarray(rows))
                self._totals[name] = self._totals.get(name, 0.0) + weight * float(np.asarray(value))
                self._weights[name] = self._weights.get(name, 0.0) + weight
        self._pending.clear()

    def result(self) -> dict[str, float]:
        self._settle()
        return {name: total / self._weights[name] for name, total in self._totals.items()}


@dataclasses.dataclass
class Evaluation:
    """An evaluation of a built model that has been restored."""

    model: BuiltModel
    config: RunConfig
    model_dir: str
    eval_dir: str
    hooks: Sequence[object]

    def run(self, batches: Iterator[PyTree]) -> dict[str, float]:
        """Returns the loss, the metrics and the global step."""
        spec, writes = self.model.spec, self.config.cluster.is_chief
        step = int(self.model.global_step.numpy())
        context = HookContext(self.model.mode, self.model_dir, step, writes, spec.metrics)
        given = [*self.hooks, *(spec.evaluation_hooks or ())]
        hooks = Hooks(given)
        means = WeightedMeans(["loss"] if spec.loss_reduction == "sum" else [])
        evaluate = function(ModelSteps(self.model).evaluate)

        def one(batch: PyTree) -> Mapping[str, jax.Array]:
            values, rows = evaluate(batch)
            means.add(values, rows)
            return values

        hooks.call("begin", context)
        with together(self.model.strategy) as stop:
            run_steps(itertools.islice(batches, steps_left(given, context)), one, hooks, context, stop)
        hooks.call("end", context)
        results = means.result() | self._metrics()
        self._write(step, results, writes)
        return {**results, GLOBAL_STEP: step}

    def _metrics(self) -> dict[str, float]:
        results: dict[str, float] = {}
        for name, metric in self.model.spec.metrics.items():
            found = metric.result()
            named = (
                {f"{name}/{key}": each for key, each in found.items()} if isinstance(found, Mapping) else {name: found}
            )
            for key, each in named.items():
                array = np.asarray(each)
                results[key] = float(array) if array.ndim == 0 else array  # type: ignore[assignment]  # as Keras has it
        return results

    def _write(self, step: int, results: Mapping[str, float], writes: bool) -> None:
        shown = ", ".join(f"{name} = {value}" for name, value in results.items())
        _log.info("Saving dict for global step %d: %s", step, shown)
        if not writes:
            return
        with ScalarWriter(self.eval_dir) as scalars:
            scalars.write(step, results)
        note_evaluation(self.eval_dir, {**results, GLOBAL_STEP: step})
