"""The hooks that estimators bring: stopping, logging, saving, measuring."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np

from replicax.checks import checked, checked_int, checked_seconds
from replicax.errors import EstimatorError, NanLossError
from replicax.estimator.hooks import Hook, HookContext
from replicax.typing import PyTree

_log = logging.getLogger("replicax.estimator")


class EveryN:
    """A timer by steps or by seconds: due at once unless it was restarted before; never due if both are None."""

    def __init__(self, steps: int | None = None, secs: float | None = None):
        if steps is not None and secs is not None:
            raise EstimatorError(f"Give a number of steps or of seconds, not both; got {steps!r} and {secs!r}.")
        if steps is not None:
            checked_int("every_n_steps", steps, least=1)
        if secs is not None:
            checked_seconds("every_n_secs", secs)
        self._steps, self._secs = steps, secs
        self.last_step: int | None = None
        self.last_time = time.monotonic()

    def is_over(self, step: int) -> bool:
        """Returns whether the timer is due at a step."""
        if self._steps is None and self._secs is None:
            return False
        if self.last_step is None:
            return True
        if self._steps is not None:
            return step >= self.last_step + self._steps
        return time.monotonic() >= self.last_time + (self._secs or 0.0)

    def restart(self, step: int) -> tuple[float, int]:
        """Begins anew at a step; returns how many seconds and steps have passed."""
        now = time.monotonic()
        passed = now - self.last_time, step - (self.last_step or 0)
        self.last_step, self.last_time = step, now
        return passed


class StopAtStepHook(Hook):
    """Ends a loop after a number of steps.

    Args:
        num_steps: How many steps the loop does.
        last_step: The global step at which it ends. One of the two is given.

    Raises:
        EstimatorError: Both or neither are given.

    Example:
        >>> hook = rx.estimator.StopAtStepHook(num_steps=1000)
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None):
        if (num_steps is None) == (last_step is None):
            raise EstimatorError(f"Give one of `num_steps` and `last_step`; got {num_steps!r} and {last_step!r}.")
        self._num_steps = None if num_steps is None else checked_int("num_steps", num_steps, least=1)
        self._last_step = None if last_step is None else checked_int("last_step", last_step, least=1)

    def steps_left(self, context: HookContext) -> int:
        """Returns how many steps a loop that begins may do; the loop ends by that."""
        if self._num_steps is not None:
            return self._num_steps
        return max(0, (self._last_step or 0) - context.step)


@checked
class NanTensorHook(Hook):
    """Ends a training whose loss is not finite. The estimator adds one to each training.

    It looks at the loss of the step before, which is there already, so that no step is waited for; and at that of the
    last one before a checkpoint is saved.

    Args:
        fail_on_nan_loss: Whether to raise `NanLossError`; otherwise it stops.

    Example:
        >>> hook = rx.estimator.NanTensorHook(fail_on_nan_loss=False)
    """

    def __init__(self, fail_on_nan_loss: bool = True):
        self._fails = fail_on_nan_loss
        self._pending: tuple[int, Callable[[], float]] | None = None

    def before_step(self, context: HookContext) -> None:
        self.check(context)

    def after_step(self, context: HookContext) -> None:
        self._pending = context.step, context.reader("loss")

    def end(self, context: HookContext) -> None:
        self.check(context)

    def before_save(self, context: HookContext) -> None:
        """A checkpoint is about to be saved: one with such a loss would be worth nothing."""
        self.check(context)

    def check(self, context: HookContext) -> None:
        """Looks at the last loss."""
        if self._pending is None:
            return
        (step, read), self._pending = self._pending, None
        loss = read()
        if math.isfinite(loss):
            return
        if self._fails:
            raise NanLossError(step, str(loss))
        _log.warning("The loss is %s at step %d: the training ends.", loss, step)
        context.request_stop()


class LoggingTensorHook(Hook):
    """Writes the loss and metrics to the log, every so often and at the end.

    Args:
        names: Which: `"loss"` and names in `eval_metric_ops`; by default all.
        every_n_iter: After how many steps each.
        every_n_secs: After how many seconds each; in the place of the steps.
        at_end: Whether to write at the end, and only there if neither of the two is given.
        formatter: Makes the line of a dict of values.

    Example:
        >>> hook = rx.estimator.LoggingTensorHook(every_n_iter=100)
    """

    def __init__(
        self,
        names: Iterable[str] | None = None,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[Mapping[str, float]], str] | None = None,
    ):
        if every_n_iter is None and every_n_secs is None and not at_end:
            raise EstimatorError("Give `every_n_iter`, `every_n_secs` or `at_end=True`: else nothing is logged.")
        self._names = None if names is None else [names] if isinstance(names, str) else list(names)
        self._timer = EveryN(every_n_iter, every_n_secs)
        self._at_end, self._formatter = at_end, formatter

    def after_step(self, context: HookContext) -> None:
        if self._timer.is_over(context.step):
            self._write(context)

    def end(self, context: HookContext) -> None:
        if self._at_end and context.steps_done:
            self._write(context)

    def _write(self, context: HookContext) -> None:
        first = self._timer.last_step is None
        seconds, _ = self._timer.restart(context.step)
        values = context.values() if self._names is None else {name: context.value(name) for name in self._names}
        if self._formatter is not None:
            _log.info("%s", self._formatter(values))
            return
        shown = ", ".join(f"{name} = {value:.7g}" for name, value in values.items())
        _log.info("%s, step = %d%s", shown, context.step, "" if first else f" ({seconds:.3f} sec)")


class StepCounterHook(Hook):
    """Measures how many steps are done in a second, writes it to the log and for TensorBoard.

    Args:
        every_n_steps: After how many steps each.
        every_n_secs: After how many seconds each; in the place of the steps.
        write: Called with the step and `{"global_step/sec": number}`.

    Example:
        >>> hook = rx.estimator.StepCounterHook(every_n_steps=50)
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        write: Callable[[int, Mapping[str, float]], None] | None = None,
    ):
        self._timer = EveryN(every_n_steps, every_n_secs)
        self._write = write

    def begin(self, context: HookContext) -> None:
        self._timer.restart(context.step)

    def after_step(self, context: HookContext) -> None:
        if not self._timer.is_over(context.step):
            return
        seconds, steps = self._timer.restart(context.step)
        speed = steps / max(seconds, 1e-9)
        _log.info("global_step/sec: %g", speed)
        if self._write is not None:
            self._write(context.step, {"global_step/sec": speed})


class SummarySaverHook(Hook):
    """Writes the loss and metrics of a training for TensorBoard, every so often.

    Args:
        save_steps: After how many steps each.
        write: Called with the step and the values.

    Example:
        >>> hook = rx.estimator.SummarySaverHook(100, lambda step, values: print(step, values))
    """

    def __init__(self, save_steps: int, write: Callable[[int, Mapping[str, float]], None]):
        self._timer, self._write = EveryN(save_steps), write

    def after_step(self, context: HookContext) -> None:
        if self._timer.is_over(context.step):
            self._timer.restart(context.step)
            self._write(context.step, context.values())


class FinalOpsHook(Hook):
    """Calls a function when a loop has ended, and keeps what it returns.

    Args:
        final_ops: A function of the `HookContext`.

    Attributes:
        final_ops_values: What it has returned; None before.

    Example:
        >>> hook = rx.estimator.FinalOpsHook(lambda context: context.step)
    """

    def __init__(self, final_ops: Callable[[HookContext], PyTree]):
        if not callable(final_ops):
            raise EstimatorError(f"`final_ops` is a function of the HookContext, got {final_ops!r:.100}.")
        self._final_ops = final_ops
        self.final_ops_values: PyTree = None

    def end(self, context: HookContext) -> None:
        result = self._final_ops(context)
        self.final_ops_values = jax.tree_util.tree_map(
            lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, result
        )


def steps_left(hooks: Sequence[object], context: HookContext) -> int | None:
    """Returns how many steps there are to do at most, by the hooks that stop at a step; None if none does."""
    # The loop needs it before it begins: with several steps under way, or several workers, a hook stops it too late.
    left = [hook.steps_left(context) for hook in hooks if isinstance(hook, StopAtStepHook)]
    return min(left, default=None)
