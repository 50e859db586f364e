"""The TensorBoard callback: event files and profiles without TensorFlow.

The file loads without Keras and tensorboardX. `rx.keras.TensorBoard`, made by `tensorboard_class`, is `_TensorBoard` on
top of Keras's `Callback`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import operator
import os
import time
import weakref
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from replicax.errors import ArgumentError
from replicax.runtime import clock
from replicax.runtime.ending import finish_at_end, finished, only_here

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_FLUSHES = 10  # so that the curves follow the training
# tensorboardX names a file by the second; a second `fit` within the same one would overwrite the first one's file.
_file_numbers = itertools.count()


@functools.cache
def tensorboard_class() -> Any:
    """Returns the class `rx.keras.TensorBoard`; imports Keras."""
    import keras

    namespace = {"__doc__": _TensorBoard.__doc__, "__module__": "replicax.keras"}
    return type("TensorBoard", (_TensorBoard, keras.callbacks.Callback), namespace)


class _TensorBoard:
    """Writes what happens during training where TensorBoard finds it, like `keras.callbacks.TensorBoard`.

    No TensorFlow is needed, only tensorboardX (`pip install 'replicax[tensorboard]'`). There are two runs, the folders
    `train` and `validation` of `log_dir`:

    - each epoch, for each loss and metric, `epoch_<name>` (a metric of several numbers gives `epoch_<name>/0` and so
      on), and in `train` the `epoch_learning_rate`,
    - each evaluation, in `validation`, `evaluation_<name>_vs_iterations`, over the optimizer's steps,
    - every `update_freq` training steps, `batch_<name>`, over the steps since `fit` began,
    - each epoch, where [a ledger](../guides/where-did-my-day-go.md) is kept, in `train`: which part of this process's
      time was `ledger/computing`, `ledger/waiting_for_input` ...,
    - every `histogram_freq` epochs, for each weight, `<path of the weight>/histogram`, of its finite values.

    Files are closed when training ends, also when it ends with an error.

    Args:
        log_dir: Folder to write to; it is made if it does not exist.
        update_freq: `"epoch"`, or how often losses and metrics of single batches are written: `"batch"` or a number of
            steps. They are then waited for, so that a step no longer overlaps with the preparation of the next.
        histogram_freq: Number of epochs from one set of histograms to the next, the first epoch included; 0 for none.
        profile_batch: Number of the training step to profile, counted from 1, or the first and the last one of a range;
            0 for none. The first steps contain the compilation.
        write_steps_per_second: Whether `epoch_steps_per_second` (of the training, without the validation) and, where
            batches are written, `batch_steps_per_second` (since the last one that was) are written as well.

    Raises:
        ArgumentError: An argument has the wrong type or value; tensorboardX is not installed; when `fit` begins:
            `log_dir` cannot be written to.

    Example:
        >>> import tempfile
        >>> board = rx.keras.TensorBoard(tempfile.mkdtemp(), update_freq=100)
    """

    model: Any  # Keras sets these.
    params: dict[str, Any]

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        *,
        update_freq: str | int = "epoch",
        histogram_freq: int = 0,
        profile_batch: int | tuple[int, int] = 0,
        write_steps_per_second: bool = False,
    ):
        super().__init__()
        self.log_dir = _checked_path(log_dir)
        self.update_freq = update_freq
        self.histogram_freq = _checked_count("histogram_freq", histogram_freq, "a number of epochs, or 0 for none")
        self.profile_batch = profile_batch
        self.write_steps_per_second = write_steps_per_second
        self._steps_between_writes = _checked_update_freq(update_freq)
        self._files = _EventFiles(self.log_dir)
        self._profile = _Profile(os.path.join(self.log_dir, "train"), *_checked_range(profile_batch))
        self._training = False
        # For the files of a `fit` that an error ended: Keras then calls no callback any more.
        self._finalizer = weakref.finalize(self, only_here(_close), self._files, self._profile)

    # Training.

    def on_train_begin(self, logs: Any = None) -> None:
        del logs
        _close(self._files, self._profile)
        self._training = True
        self._steps = 0
        self._files.open("train")

    def continue_from(self, steps: int) -> None:
        """Counts on from `steps`: another worker has written about those before."""
        self._steps = steps

    def on_train_end(self, logs: Any = None) -> None:
        del logs
        self._training = False
        _close(self._files, self._profile)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del epoch, logs
        self._steps_before_epoch = self._steps
        self._epoch_speed: float | None = None
        self._epoch_clock, self._batch_clock = _Clock(self._steps), _Clock(self._steps)
        self._spent_before = _spent()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        del logs
        first = self._steps_before_epoch + batch + 1
        self._profile.before(first, first + self.model.steps_per_execution - 1)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        # Keras counts the last execution of an epoch in full, even where it has fewer steps than the others.
        done = min(batch + 1, self.params.get("steps") or batch + 1)
        before, self._steps = self._steps, self._steps_before_epoch + done
        self._profile.after(self._steps, logs)
        every = self._steps_between_writes
        if not every or self._steps // every == before // every:
            return
        event = self._files.event("train", self._steps)
        event.scalars("batch_", logs)
        if self.write_steps_per_second:
            event.scalars("batch_", {"steps_per_second": self._batch_clock.speed(self._steps)})
            self._batch_clock = _Clock(self._steps)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._stop_epoch_clock()
        logs = dict(logs or {})
        validation = {name.removeprefix("val_"): logs.pop(name) for name in list(logs) if name.startswith("val_")}
        event = self._files.event("train", epoch)
        event.scalars("epoch_", logs)
        event.scalars("epoch_", _learning_rates(self.model.optimizer))
        if self.write_steps_per_second:
            event.scalars("epoch_", {"steps_per_second": self._epoch_speed})
        event.scalars("ledger/", _shares(self._spent_before, _spent()))
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            event.histograms(self.model.weights)
        if validation:
            self._files.event("validation", epoch).scalars("epoch_", validation)

    def _stop_epoch_clock(self) -> None:
        """Notes how fast the epoch's training steps were: when they are done, and before validation begins."""
        if self.write_steps_per_second and self._epoch_speed is None:
            jax.block_until_ready([variable.value for variable in self.model.trainable_variables])
            self._epoch_speed = self._epoch_clock.speed(self._steps)

    # Evaluation, inside of `fit` or on its own.

    def on_test_begin(self, logs: Any = None) -> None:
        del logs
        if self._training:
            self._stop_epoch_clock()

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        iterations = getattr(self.model.optimizer, "iterations", None)
        if iterations is not None:
            event = self._files.event("validation", int(np.asarray(iterations)))
            event.scalars("evaluation_", logs, "_vs_iterations")
        if not self._training:
            self._files.close()


def _close(files: _EventFiles, profile: _Profile) -> None:
    profile.stop()
    files.close()


# Writing.


class _EventFiles:
    """The event files of the runs in one folder, each opened when it is first written to."""

    def __init__(self, log_dir: str):
        self._log_dir = log_dir
        self._writers: dict[str, Any] = {}
        self._summary_writer = _summary_writer_class()

    def open(self, run: str) -> Any:
        """Returns the writer of a run."""
        if run not in self._writers:
            finish_at_end(self, self.close)
            suffix = f".{os.getpid()}.{next(_file_numbers):06d}"
            try:
                self._writers[run] = self._summary_writer(
                    os.path.join(self._log_dir, run), flush_secs=_SECONDS_BETWEEN_FLUSHES, filename_suffix=suffix
                )
            except OSError as error:
                raise ArgumentError(
                    f"The TensorBoard callback cannot write to log_dir={self._log_dir!r}: {error}. Give a folder that "
                    "exists or can be made, and that this process may write to."
                ) from error
        return self._writers[run]

    def event(self, run: str, step: int) -> _Event:
        """Returns what writes values of one step of a run."""
        return _Event(self.open(run), step)

    def close(self) -> None:
        """Closes all files; writing opens new ones."""
        while self._writers:
            self._writers.popitem()[1].close()
        finished(self)


class _Event:
    """Writes the values of one step."""

    def __init__(self, writer: Any, step: int):
        self._writer, self._step = writer, step

    def scalars(self, prefix: str, values: Mapping[str, Any] | None, suffix: str = "") -> None:
        for name, value in (values or {}).items():
            numbers = np.asarray(value, np.float64)
            tag = f"{prefix}{name}{suffix}"
            for index, number in enumerate(numbers.flat):
                self._writer.add_scalar(tag if numbers.ndim == 0 else f"{tag}/{index}", number, self._step)

    def histograms(self, variables: Any) -> None:
        for variable in variables:
            numbers = np.asarray(variable.value).astype(np.float64)
            finite = numbers[np.isfinite(numbers)]
            if finite.size:
                self._writer.add_histogram(f"{variable.path}/histogram", finite, self._step, bins="tensorflow")


class _Clock:
    """Measures the speed of steps from when it is made."""

    def __init__(self, steps: int):
        self._steps, self._start = steps, time.perf_counter()

    def speed(self, steps: int) -> float:
        """Returns the number of steps per second."""
        return (steps - self._steps) / max(time.perf_counter() - self._start, 1e-9)


def _spent() -> dict[str, float]:
    """Returns by class of the ledger the seconds of this process; none if it keeps no ledger."""
    return clock.running.seconds() if clock.running is not None else {}


def _shares(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Returns by class which part of the time between it was: of those that were there, and of computing always."""
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    whole = sum(spent.values())
    shown = {name: seconds for name, seconds in spent.items() if whole and (seconds or name == clock.COMPUTING)}
    return {name.replace(" ", "_"): seconds / whole for name, seconds in shown.items()}


def _learning_rates(optimizer: Any) -> dict[str, float]:
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # A LossScaleOptimizer's.
    if hasattr(optimizer, "optimizers"):
        return {f"learning_rate_{each.name}": float(each.learning_rate) for each in optimizer.optimizers}
    return {"learning_rate": float(optimizer.learning_rate)} if hasattr(optimizer, "learning_rate") else {}


# Profiling.


class _Profile:
    """Profiles the training steps from `first` to `last` into a folder; none if `last` is 0."""

    def __init__(self, log_dir: str, first: int, last: int):
        self._log_dir, self._first, self._last = log_dir, first, last
        self._is_running = False
        self._step = contextlib.ExitStack()

    def before(self, first: int, last: int) -> None:
        """Called before the steps `first` to `last` run, as one execution."""
        if not self._is_running and first <= self._last and self._first <= last:
            self._start()
        if self._is_running:
            self._step.enter_context(jax.profiler.StepTraceAnnotation("train", step_num=first))

    def _start(self) -> None:
        try:
            jax.profiler.start_trace(self._log_dir)
        except RuntimeError as error:  # Training goes on; somebody else profiles, most likely.
            _log.warning("The TensorBoard callback could not start the profiler: %s", error)
            self._last = 0
        else:
            self._is_running = True

    def after(self, step: int, outputs: Any) -> None:
        """Called when the steps up to `step` have been started and will give `outputs`."""
        if not self._is_running:
            return
        jax.block_until_ready(outputs)
        self._step.close()
        if step >= self._last:
            self.stop()

    def stop(self) -> None:
        """Ends the profile, if one is running, and writes it."""
        self._step.close()
        if self._is_running:
            self._is_running = False
            jax.profiler.stop_trace()


# Arguments.


def _summary_writer_class() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ArgumentError(
            "The TensorBoard callback writes its files with tensorboardX, which cannot be imported "
            f"({error}). Install it: pip install 'replicax[tensorboard]'."
        ) from error
    return SummaryWriter


def _checked_path(log_dir: Any) -> str:
    try:
        path = os.fspath(log_dir)
    except TypeError:
        path = b""
    if not isinstance(path, str) or not path:
        raise ArgumentError(f"`log_dir` is the path of a folder, got {log_dir!r}.")
    return path


def _checked_count(name: str, value: Any, meaning: str) -> int:
    try:
        count = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = -1
    if count < 0:
        raise ArgumentError(f"`{name}` is {meaning}, got {value!r}.")
    return count


def _checked_update_freq(update_freq: Any) -> int:
    """Returns the number of steps from one writing of batches to the next, 0 for never."""
    if isinstance(update_freq, str) and update_freq in ("epoch", "batch"):
        return int(update_freq == "batch")
    meaning = "'epoch', 'batch' or a number of steps, at least 1"
    count = _checked_count("update_freq", update_freq, meaning)
    if count == 0:
        raise ArgumentError(f"`update_freq` is {meaning}, got {update_freq!r}.")
    return count


def _checked_range(profile_batch: Any) -> tuple[int, int]:
    meaning = "the number of a training step, 0 for none, or a pair (first, last) with 1 <= first <= last"
    if not isinstance(profile_batch, (tuple, list)):
        step = _checked_count("profile_batch", profile_batch, meaning)
        return step, step
    steps = [_checked_count("profile_batch", step, meaning) for step in profile_batch]
    if len(steps) != 2 or not 1 <= steps[0] <= steps[1]:
        raise ArgumentError(f"`profile_batch` is {meaning}, got {profile_batch!r}.")
    return steps[0], steps[1]
