"""Hooks: what happens around the steps of a training, an evaluation or a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import jax
import numpy as np

from replicax.errors import EstimatorError

if TYPE_CHECKING:
    from replicax.estimator.spec import Metric

HOOK_METHODS = ("begin", "before_step", "after_step", "end")


class HookContext:
    """The part of a loop that its hooks see.

    Args:
        mode: The `ModeKeys` of the loop.
        model_dir: The folder of the estimator.
        step: The global step at which the loop begins.
        is_chief: Whether this process writes files.
        metrics: The metrics of the model function, by name.

    Attributes:
        mode: The `ModeKeys` of the loop.
        model_dir: The folder of the estimator.
        step: The global step: in a training, how many steps are done in all; otherwise, that of the checkpoint.
        steps_done: How many steps this loop has done.
        is_chief: Whether this process writes files.
        stop_requested: Whether the loop ends after this step.

    Example:
        >>> rx.estimator.HookContext("train", "model", step=7).step
        7
    """

    def __init__(
        self,
        mode: str,
        model_dir: str,
        step: int = 0,
        is_chief: bool = True,
        metrics: Mapping[str, Metric] | None = None,
    ):
        self.mode, self.model_dir, self.step, self.is_chief = mode, model_dir, step, is_chief
        self.steps_done = 0
        self.stop_requested = False
        self._save: Callable[[], str | None] | None = None
        self._metrics = dict(metrics or {})
        self._values: Mapping[str, jax.Array] = {}

    def request_stop(self) -> None:
        """Ends the loop after this step. With several workers it ends a few steps later, at one that all can end at."""
        self.stop_requested = True

    def save(self) -> str | None:
        """Saves a checkpoint of a training now; with several workers, all of them must ask at the same step.

        Returns:
            Its path.

        Raises:
            EstimatorError: This is no training.
        """
        if self._save is None:
            raise EstimatorError(f"Checkpoints are saved in a training; the mode of this loop is {self.mode!r}.")
        return self._save()

    def save_with(self, save: Callable[[], str | None]) -> None:
        """Takes from the loop how to save."""
        self._save = save

    @property
    def loss(self) -> float:
        """The loss of the last step's batch; reading it waits for the step."""
        return self.value("loss")

    @property
    def names(self) -> list[str]:
        """The names that `value` knows."""
        return list(dict.fromkeys([*self._values, *self._metrics]))

    def value(self, name: str) -> float:
        """Returns `"loss"` or a metric of the model function; reading it waits for the step.

        An array in `eval_metric_ops` has its value for the last step's batch, a Keras metric what it has counted since
        the loop began.

        Raises:
            EstimatorError: There is none of this name, or it is not one number.
        """
        if name in self._values:
            return float(np.asarray(self._values[name]))
        if name not in self._metrics:
            raise EstimatorError(f"There is no value {name!r}. There are: {', '.join(self.names)}.")
        result = np.asarray(self._metrics[name].result())
        if result.size != 1:
            raise EstimatorError(f"Metric {name!r} has shape {result.shape}: it is not one number.")
        return float(result.reshape(()))

    def reader(self, name: str) -> Callable[[], float]:
        """Returns what gives a value of this very step when it is called, perhaps after further steps."""
        value = self._values[name]
        return lambda: float(np.asarray(value))

    def values(self) -> dict[str, float]:
        """Returns the loss and all metrics that are one number."""
        return {name: self.value(name) for name in self.names if name in self._values or self._is_number(name)}

    def _is_number(self, name: str) -> bool:
        result = self._metrics[name].result()
        return not isinstance(result, Mapping) and np.size(result) == 1

    def note_step(self, step: int, values: Mapping[str, jax.Array]) -> None:
        """Takes from the loop that a step is done."""
        self.step, self._values = step, values
        self.steps_done += 1


class Hook:
    """Called around the steps of a loop; a subclass overrides what it needs.

    The order is `begin`, for each step `before_step` and `after_step`, and `end` unless an error ended the loop.

    Example:
        >>> class PrintLoss(Hook):
        ...     def after_step(self, context):
        ...         if context.step % 100 == 0:
        ...             print(context.step, context.loss)
    """

    def begin(self, context: HookContext) -> None:
        """The variables have their values, and no step is done yet."""

    def before_step(self, context: HookContext) -> None:
        """A step is about to begin."""

    def after_step(self, context: HookContext) -> None:
        """A step has been started; reading its values waits for it."""

    def end(self, context: HookContext) -> None:
        """All steps are done; in a training, the last checkpoint comes after this."""
