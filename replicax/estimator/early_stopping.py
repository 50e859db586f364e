"""Hooks that end a training by what its evaluations say, as `tf.estimator.experimental` has them."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from replicax.checks import checked, checked_int
from replicax.errors import EstimatorError
from replicax.estimator.basic_hooks import EveryN
from replicax.estimator.hooks import Hook, HookContext
from replicax.estimator.scalars import read_eval_metrics

if TYPE_CHECKING:
    from replicax.estimator.estimator import Estimator

Directory = str | os.PathLike[str]


class EarlyStoppingHook(Hook):
    """Ends a training when a function says so; `make_early_stopping_hook` makes it."""

    def __init__(self, should_stop_fn: Callable[[], bool], timer: EveryN):
        self._should_stop, self._timer = should_stop_fn, timer

    def begin(self, context: HookContext) -> None:
        self._timer.restart(context.step)

    def after_step(self, context: HookContext) -> None:
        if context.is_chief and self._timer.is_over(context.step):
            self._timer.restart(context.step)
            if self._should_stop():
                context.request_stop()


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Makes a hook that ends a training when a function returns True. With several workers the chief calls it.

    Args:
        estimator: The estimator.
        should_stop_fn: A function without arguments.
        run_every_secs: After how many seconds each it is called.
        run_every_steps: After how many steps each, in the place of the seconds.

    Raises:
        EstimatorError: `should_stop_fn` is no function, or both or neither of the two intervals are given.

    Example:
        >>> import time
        >>> estimator = rx.estimator.Estimator(lambda features, labels, mode: None)
        >>> deadline = time.monotonic() + 3600
        >>> hook = rx.estimator.make_early_stopping_hook(estimator, lambda: time.monotonic() > deadline)
        >>> isinstance(hook, rx.estimator.Hook)  # for estimator.train(input_fn, hooks=[hook])
        True
    """
    del estimator
    if not callable(should_stop_fn):
        raise EstimatorError(f"`should_stop_fn` is a function without arguments, got {should_stop_fn!r:.100}.")
    if run_every_steps is not None and run_every_secs == 60:
        run_every_secs = None
    if run_every_secs is None and run_every_steps is None:
        raise EstimatorError("Give one of `run_every_secs` and `run_every_steps`.")
    return EarlyStoppingHook(should_stop_fn, EveryN(run_every_steps, run_every_secs))


@checked
def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: Directory | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Makes a hook that ends a training when a metric of its evaluations decreases no more.

    Args:
        estimator: The estimator.
        metric_name: `"loss"`, or a metric's name.
        max_steps_without_decrease: After how many steps since the best evaluation the training ends.
        eval_dir: The folder of the evaluations; by default `estimator.eval_dir()`.
        min_steps: No evaluation before this step counts as a reason to stop.
        run_every_secs: After how many seconds each the evaluations are looked at.
        run_every_steps: After how many steps each, in the place of the seconds.

    Example:
        >>> estimator = rx.estimator.Estimator(lambda features, labels, mode: None)
        >>> hook = rx.estimator.stop_if_no_decrease_hook(estimator, "loss", 1000)
        >>> isinstance(hook, rx.estimator.Hook)
        True
    """
    stop = _no_better(estimator, metric_name, max_steps_without_decrease, eval_dir, min_steps, operator.lt)
    return make_early_stopping_hook(estimator, stop, run_every_secs, run_every_steps)


@checked
def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: Directory | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Like `stop_if_no_decrease_hook`, for a metric that is to increase.

    Example:
        >>> estimator = rx.estimator.Estimator(lambda features, labels, mode: None)
        >>> hook = rx.estimator.stop_if_no_increase_hook(estimator, "accuracy", 1000)
        >>> isinstance(hook, rx.estimator.Hook)
        True
    """
    stop = _no_better(estimator, metric_name, max_steps_without_increase, eval_dir, min_steps, operator.gt)
    return make_early_stopping_hook(estimator, stop, run_every_secs, run_every_steps)


@checked
def stop_if_higher_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: Directory | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Makes a hook that ends a training when a metric of its evaluations is higher than a threshold.

    The arguments are those of `stop_if_no_decrease_hook`.

    Example:
        >>> estimator = rx.estimator.Estimator(lambda features, labels, mode: None)
        >>> hook = rx.estimator.stop_if_higher_hook(estimator, "accuracy", 0.98)
        >>> isinstance(hook, rx.estimator.Hook)
        True
    """
    stop = _beyond(estimator, metric_name, threshold, eval_dir, min_steps, operator.gt)
    return make_early_stopping_hook(estimator, stop, run_every_secs, run_every_steps)


@checked
def stop_if_lower_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: Directory | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Like `stop_if_higher_hook`, for a metric that is lower.

    Example:
        >>> estimator = rx.estimator.Estimator(lambda features, labels, mode: None)
        >>> hook = rx.estimator.stop_if_lower_hook(estimator, "loss", 0.1)
        >>> isinstance(hook, rx.estimator.Hook)
        True
    """
    stop = _beyond(estimator, metric_name, threshold, eval_dir, min_steps, operator.lt)
    return make_early_stopping_hook(estimator, stop, run_every_secs, run_every_steps)


_Compare = Callable[[float, float], bool]


def _no_better(
    estimator: Estimator, metric: str, most: int, eval_dir: Directory | None, min_steps: int, better: _Compare
) -> Callable[[], bool]:
    checked_int("max_steps_without_decrease or max_steps_without_increase", most, least=0)
    folder = _folder(estimator, eval_dir)

    def should_stop() -> bool:
        best: tuple[int, float] | None = None
        for step, value in _values(folder, metric).items():
            if best is None or math.isnan(best[1]) or better(value, best[1]):
                best = step, value
            if step >= min_steps and step - best[0] >= most and step != best[0]:
                return True
        return False

    return should_stop


def _beyond(
    estimator: Estimator, metric: str, threshold: float, eval_dir: Directory | None, min_steps: int, beyond: _Compare
) -> Callable[[], bool]:
    folder = _folder(estimator, eval_dir)
    return lambda: any(
        step >= min_steps and beyond(value, threshold) for step, value in _values(folder, metric).items()
    )


def _folder(estimator: Estimator, eval_dir: Directory | None) -> Directory:
    return estimator.eval_dir() if eval_dir is None else eval_dir


def _values(folder: Directory, metric: str) -> Mapping[int, float]:
    found = read_eval_metrics(folder)
    names = {name for values in found.values() for name in values}
    if found and metric not in names:
        raise EstimatorError(f"The evaluations in {folder} have no metric {metric!r}. They have: {sorted(names)}.")
    return {step: values[metric] for step, values in found.items() if metric in values}
