"""The sidecar evaluator: a process of its own evaluates each checkpoint while the workers train on."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replicax.checkpoint import Checkpoint, numbered, read_metadata, restore_variables
from replicax.checkpoint.checkpoint_follower import Follower, Found, Outcome, Rules
from replicax.checkpoint.places import Directory, absolute
from replicax.checks import checked_int, checked_seconds, explained
from replicax.errors import ArgumentError, CheckpointError
from replicax.keras.chief_writes import write_atomically
from replicax.keras.tensorboard import _EventFiles

_log = logging.getLogger(__name__)
_BETTER: dict[str, Callable[[float, float], bool]] = {"min": lambda a, b: a < b, "max": lambda a, b: a > b}
_MODEL_FILES = (".keras", ".weights.h5")
_TRIES = 5
_NUMBER = re.compile(r"\d+")
_GREATER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "r2")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One checkpoint's evaluation."""

    name: str  # of the checkpoint
    step: int  # for a file without a number in its name, how many evaluations there were before
    logs: Mapping[str, float]


@explained
class SidecarEvaluator:
    """Waits for checkpoints, evaluates each new one once, in order, and keeps the best model.

    It runs in a process of its own, beside the workers that train: the *evaluator* of the cluster (`replicax run
    --evaluator`, or TF_CONFIG with the task type "evaluator"). There `rx.MultiWorkerMirroredStrategy()` has this
    process's devices only and waits for nobody.

    It takes what `rx.CheckpointManager` writes (whole checkpoints, never half-written ones), and the files of
    `keras.callbacks.ModelCheckpoint`: `.keras` and `.weights.h5`. Of both it reads the weights alone. A checkpoint that
    is deleted before its turn comes is left out, and said so in the log.

    Args:
        model: A compiled model with the architecture of the one that is trained.
        data: What to evaluate on: `(x, y)` or `(x, y, sample_weight)`, or a dataset that can be read again and again.
        checkpoint_dir: Where the checkpoints appear; it need not exist yet.
        steps: Number of batches of each evaluation; by default all.
        max_evaluations: After how many evaluations `start` returns; by default it goes on.
        callbacks: Keras callbacks for the evaluations.
        poll_interval_s: How often to look for checkpoints, in seconds.
        idle_timeout_s: After how many seconds without a new checkpoint `start` returns; None for never.
        monitor: Which of the losses and metrics tells the best model.
        mode: `"min"`, `"max"`, or `"auto"`: "max" for accuracies and the like, otherwise "min".
        best_model_path: Where the best model so far is saved: a file with the ending `.keras` or `.weights.h5`; None
            for nowhere.
        log_dir: Folder for TensorBoard's scalars, which need tensorboardX (the extra `tensorboard`); by default
            `evaluations` in `checkpoint_dir`.
        name: How the model is called in checkpoints of `rx.CheckpointManager`: the key in its `objects`.

    Raises:
        ArgumentError: An argument has the wrong type or value.

    Attributes:
        evaluations: What has been evaluated so far: each with `name`, `step` and `logs`.
        best: The best of them, or None.

    Example:
        >>> evaluator = rx.keras.SidecarEvaluator(model, (x, y), "checkpoints", max_evaluations=10)  # doctest: +SKIP
        >>> evaluator.start()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        checkpoint_dir: Directory,
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Any] | None = None,
        *,
        poll_interval_s: float = 1.0,
        idle_timeout_s: float | None = 600.0,
        monitor: str = "loss",
        mode: str = "auto",
        best_model_path: str | os.PathLike[str] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        name: str = "model",
    ):
        for name_of_count, count in (("steps", steps), ("max_evaluations", max_evaluations)):
            if count is not None:
                checked_int(name_of_count, count, least=1, note=", or None")
        checked_seconds("poll_interval_s", poll_interval_s)
        if idle_timeout_s is not None:
            checked_seconds("idle_timeout_s", idle_timeout_s, note=", or None")
        if mode not in ("auto", *_BETTER):
            raise ArgumentError(f"`mode` is 'min', 'max' or 'auto', got {mode!r}.")
        if hasattr(data, "__next__"):
            raise ArgumentError(
                f"`data` is read again for each checkpoint, but {data!r:.100} is an iterator, which ends for good. "
                "Give the arrays or the dataset that it comes from."
            )
        self.model = model
        self.evaluations: list[Evaluation] = []
        self.best: Evaluation | None = None
        self._data, self._steps, self._callbacks = data, steps, list(callbacks or [])
        self._monitor, self._mode = monitor, mode
        self._best_path = _checked_best_path(best_model_path)
        self._watched = Watched(checkpoint_dir, name)
        self._files: _EventFiles | None = None
        rules = Rules(poll_interval_s, idle_timeout_s=idle_timeout_s, max_visits=max_evaluations)
        self._follower = Follower(self._watched.found, self._visit, rules, self._watched.directory)
        self._log_dir = str(log_dir if log_dir is not None else self._watched.directory / "evaluations")

    def start(self) -> str:
        """Evaluates checkpoints until enough have been, or none has come for too long.

        Returns:
            Why it ended, in a sentence, which is logged too.

        Raises:
            CheckpointError: A checkpoint does not fit the model.
            ArgumentError: `monitor` is none of the losses and metrics.
        """
        self._files = self._event_files()
        try:
            return self._ended(self._follower.run().why)
        finally:
            if self._files is not None:
                self._files.close()

    def _ended(self, why: str) -> str:
        best = (
            f"; best {self._monitor}: {self.best.logs[self._monitor]:g} at step {self.best.step}" if self.best else ""
        )
        sentence = f"The evaluator of {self._watched.directory} ends: {why}{best}."
        _log.warning("%s", sentence)  # So that it is seen without any settings for logging.
        return sentence

    def _visit(self, found: Found) -> Outcome:
        outcome = self._watched.load(found, self.model)
        if outcome is Outcome.DONE:
            self._evaluate(found)
        return outcome

    def _evaluate(self, found: Found) -> None:
        arguments = self._data if isinstance(self._data, tuple) else (self._data,)
        given = dict(zip(("x", "y", "sample_weight"), arguments, strict=False))
        logs = self.model.evaluate(
            **given, steps=self._steps, callbacks=list(self._callbacks), verbose=0, return_dict=True
        )
        step = len(self.evaluations) if found.step is None else found.step
        done = Evaluation(found.name, step, {name: float(np.mean(value)) for name, value in logs.items()})
        self.evaluations.append(done)
        _log.info("%s: %s", done.name, ", ".join(f"{name} {value:g}" for name, value in done.logs.items()))
        if self._files is not None:
            event = self._files.event("validation", step)
            event.scalars("evaluation_", logs, "_vs_iterations")
        self._keep_best(done)

    def _keep_best(self, done: Evaluation) -> None:
        if self._monitor not in done.logs:
            raise ArgumentError(f"`monitor` is one of {[*done.logs]}, got {self._monitor!r}.")
        value = done.logs[self._monitor]
        if math.isnan(value) or (self.best and not self._is_better(value, self.best.logs[self._monitor])):
            return
        self.best = done
        if self._best_path is not None:
            os.makedirs(os.path.dirname(os.path.abspath(self._best_path)), exist_ok=True)
            save = self.model.save_weights if self._best_path.endswith(".weights.h5") else self.model.save
            write_atomically(self._best_path, save)

    def _is_better(self, value: float, than: float) -> bool:
        name = self._monitor.lower()
        greater = any(word in name for word in _GREATER_IS_BETTER) and "loss" not in name
        return _BETTER[("max" if greater else "min") if self._mode == "auto" else self._mode](value, than)

    def _event_files(self) -> _EventFiles | None:
        try:
            return _EventFiles(self._log_dir)
        except ArgumentError as error:  # tensorboardX is not there.
            _log.info("The evaluator writes no scalars: %s", error)
            return None


class Watched:
    """A folder of checkpoints: of `rx.CheckpointManager`, `rx.Checkpoint.save`, or files of `ModelCheckpoint`."""

    def __init__(self, directory: Directory, name: str):
        self.directory = absolute(directory)
        self._name = name
        self._failures: dict[Found, int] = {}

    def found(self) -> list[Found]:
        """Returns the checkpoints that are there: first those of managers, by number, then files, by age."""
        return [*self._checkpoints(), *self._files()]

    def load(self, found: Found, model: Any) -> Outcome:
        """Gives the model the weights of a checkpoint, which may be gone, or half-written."""
        if found.name.endswith(_MODEL_FILES):
            return self._load_file(found, model)
        try:
            self._check_names(found, model)
            # The optimizer and whatever else there is beside the model is meant to be left out, without a word.
            restore_variables(found.path, Checkpoint(**{self._name: model}).variables(), partial=True)
        except (CheckpointError, OSError):
            if found.path.is_dir() and found in self._checkpoints():
                raise
            _log.warning("Checkpoint %s was deleted before it could be evaluated.", found.path)
            return Outcome.GONE
        return Outcome.DONE

    def _checkpoints(self) -> list[Found]:
        return [Found(found.path, found.number) for found in numbered(self.directory)]

    def _files(self) -> list[Found]:
        found = []
        # Keras writes files to a disk only.
        for path in self.directory.glob("*") if isinstance(self.directory, Path) else ():
            # Names that begin with a dot are those of files being written.
            if path.name.endswith(_MODEL_FILES) and not path.name.startswith("."):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                numbers = _NUMBER.findall(path.name.removesuffix(".h5"))
                found.append(Found(path, int(numbers[-1]) if numbers else None, (status.st_mtime_ns, status.st_size)))
        return sorted(found, key=lambda file: (file.version, file.step or 0, file.name))

    def _check_names(self, found: Found, model: Any) -> None:
        """Checks that a checkpoint has the model's variables: a model of another name would silently keep its own."""
        stored = read_metadata(found.path).arrays
        missing = [name for name in Checkpoint(**{self._name: model}).variables() if name not in stored]
        if missing:
            known = sorted({name.partition("/")[0] for name in stored})
            raise CheckpointError(
                f"Checkpoint {found.path} lacks {len(missing)} of the model's variables, such as {missing[0]!r}. It "
                f"holds the objects {known}: pass the model's name among them as `name`, and a model of the same "
                "architecture."
            )

    def _load_file(self, found: Found, model: Any) -> Outcome:
        """Loads a file that may be half-written; if that fails, it is tried again when it has changed, or later."""
        try:
            model.load_weights(str(found.path))
        except (OSError, ValueError, KeyError) as error:
            tries = self._failures[found] = self._failures.get(found, 0) + 1
            if not found.path.exists():
                _log.warning("File %s was deleted before it could be evaluated.", found.path)
                return Outcome.GONE
            if tries >= _TRIES:
                raise CheckpointError(f"File {found.path} does not hold this model's weights: {error}") from error
            return Outcome.LATER
        return Outcome.DONE


def _checked_best_path(path: Any) -> str | None:
    if path is None:
        return None
    text = os.fspath(path)
    if not text.endswith(_MODEL_FILES):
        raise ArgumentError(f"`best_model_path` ends with '.keras' or '.weights.h5', got {text!r}.")
    return text
