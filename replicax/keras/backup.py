"""The callback BackupAndRestore: a `fit` that is killed goes on where it was when it is started again.

The file loads without Keras. `rx.keras.BackupAndRestore`, made by `backup_class`, is `_BackupAndRestore` on top of
Keras's `Callback`.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from replicax.checkpoint import CheckpointManager, read_metadata
from replicax.checkpoint.encoding import restored_state, saved_state
from replicax.checkpoint.places import absolute, delete_all
from replicax.checkpoint.preemption import PreemptionWatch, TerminationConfig, resume_exit
from replicax.checks import is_int
from replicax.compat.keras import set_initial_epoch
from replicax.contracts.group import current_group
from replicax.errors import ArgumentError, CheckpointError
from replicax.keras.loop_state import set_callback_states, states_of_callbacks
from replicax.keras.random_state import Generators
from replicax.runtime.ending import only_here

_OTHERS = "other callbacks"  # a note in the checkpoint


@functools.cache
def backup_class() -> Any:
    """Returns the class `rx.keras.BackupAndRestore`; imports Keras."""
    import keras

    namespace = {"__doc__": _BackupAndRestore.__doc__, "__module__": "replicax.keras"}
    return type("BackupAndRestore", (_BackupAndRestore, keras.callbacks.Callback), namespace)


class _BackupAndRestore:
    """Saves the training every so often, and continues from there when `fit` is called again after an interruption.

    It saves the weights, the optimizer's state, the metrics, the epoch, the step in it, and the state of the
    global random generators of NumPy and Python from which `shuffle=True` draws. For a model of a strategy it also
    saves the history and what other callbacks count: `EarlyStopping` (with its best weights), `ReduceLROnPlateau`,
    `ModelCheckpoint`, and yours that have `get_state()` and `set_state(state)`; it is called after all of them. The
    continued training is then the same as one without an interruption, provided that the data can be read again and
    come in the same order: arrays, shuffled or not, and data whose order depends on nothing but a seed. The batches
    that were seen are read and skipped; for these, callbacks are called again with the restored logs.

    When a worker is preempted (SIGTERM), all workers save the same step and exit with code 75, "resume me". Every
    worker of a strategy must have the callback, with a directory that all of them see. A training that ends well
    deletes its backup.

    Args:
        directory: Where the backups are.
        save_freq: `"epoch"`, or a number of steps from one backup to the next.
        delete_checkpoint: Whether a training that ends well deletes its backup.
        save_before_exit: Whether to save and exit at SIGTERM; otherwise the signal does what it did before.
        async_: Whether training goes on while a backup is written.
        exit_fn: Called when all is saved after SIGTERM; by default the process ends with exit code 75.

    Raises:
        ArgumentError: An argument has the wrong type or value.
        CheckpointError: When `fit` begins: the backup does not match the model; in `fit`: it could not be saved.

    Example:
        >>> import tempfile
        >>> backup = rx.keras.BackupAndRestore(tempfile.mkdtemp())
    """

    model: Any  # Keras sets these.
    params: dict[str, Any]

    def __init__(
        self,
        directory: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        *,
        delete_checkpoint: bool = True,
        save_before_exit: bool = True,
        async_: bool = True,
        exit_fn: Callable[[], Any] | None = None,
    ):
        super().__init__()
        if save_freq != "epoch" and (not is_int(save_freq) or save_freq < 1):
            raise ArgumentError(f"`save_freq` is 'epoch' or a number of steps, at least 1, got {save_freq!r}.")
        if not isinstance(directory, (str, os.PathLike)) or not os.fspath(directory):
            raise ArgumentError(f"`directory` is the path of a folder, got {directory!r}.")
        self.directory = os.fspath(directory)
        self.save_freq = save_freq
        self._deletes, self._saves_before_exit, self._async = delete_checkpoint, save_before_exit, async_
        self._exit_fn = exit_fn
        self.beside: list[Any] | None = None  # the other callbacks of a `fit` of a model of a strategy
        self._open: list[PreemptionWatch] = []
        # For a `fit` that an error ended: Keras then calls no callback any more.
        self._finalizer = weakref.finalize(self, only_here(_close), self._open)

    def on_train_begin(self, logs: Any = None) -> None:
        del logs
        _close(self._open)
        self._epoch, self._step, self._saved_at = 0, 0, 0
        self._generators = _Generators()
        self._manager = CheckpointManager(self.directory, max_to_keep=1, async_=self._async, objects=self._objects())
        self._count = 0  # of saves: the checkpoint's number, which grows
        self._resume: _Skipping | None = None
        self._restored = False
        self._others: dict[str, Any] | None = None  # the states of other callbacks, from the backup
        if isinstance(self.model.train_function, _Skipping):  # left by a `fit` that an error ended
            self.model.train_function = self.model.train_function.train
        self._given: dict[str, Any] | None = None
        self._passed = 0
        self._pass: int | None = None  # of the data in this epoch
        if not self._has_joined():
            step = self._newest_restored()
            if step is not None:
                self._continue_from(step)
        if self._saves_before_exit:
            self._open.append(PreemptionWatch(TerminationConfig()))

    def _has_joined(self) -> bool:
        """Returns whether this worker has come to a `fit` that others have begun: it has their state already."""
        membership = getattr(self.model, "_replicax", None)  # of a model of a strategy
        return membership is not None and membership.progress is not None and membership.progress.has_joined

    def _newest_restored(self) -> int | None:
        """Restores the newest backup, if there is one, and returns its number."""
        group = current_group()
        state = group.state
        try:
            return self._manager.restore_or_initialize()
        finally:
            group.offer(state)  # A newcomer joins the `fit`, and not the manager.

    def get_state(self) -> dict[str, Any]:
        """Returns what the callback of a worker has to know that joins a running `fit`."""
        return {
            "count": self._count,
            "step": self._step,
            "saved_at": self._saved_at,
            "generators": self._generators.get_state(),
            "manager": self._manager.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on, from the beginning of the epoch, where the callback of another worker is."""
        self._given = state

    def _take(self, given: dict[str, Any]) -> None:
        self._count, self._saved_at, self._passed = given["count"], given["saved_at"], given["step"]
        self._generators.set_state(given["generators"])
        self._manager.set_state(given["manager"])

    def _objects(self) -> dict[str, Any]:
        model = self.model
        objects = {"model": model, "generators": self._generators}
        if getattr(model, "optimizer", None) is not None and model.optimizer.variables:
            objects["optimizer"] = model.optimizer
        # A model lists the variables of its metrics only where these are its layers'.
        if model.metrics_variables:
            objects["metrics"] = list(model.metrics_variables)
        return objects

    def _continue_from(self, step: int) -> None:
        path = self._manager.snapshots.restored_path or self._manager.path(step)
        metadata = read_metadata(path)
        epoch, saved_at = metadata.noted_number("epoch"), metadata.noted_number("step")
        self._restored = True
        if epoch is None or saved_at is None:
            raise CheckpointError(f"{path} is no checkpoint of rx.keras.BackupAndRestore.")
        self._count, self._epoch = step, epoch
        self._saved_at = saved_at
        if (others := metadata.notes.get(_OTHERS)) is not None:
            self._others = restored_state(_OTHERS, [{_OTHERS: {"state": others}}], 0, 1)
        set_initial_epoch(self.model, self._epoch)
        dataset, number = self._dataset(), metadata.noted_number("pass")
        if dataset is not None and number is not None:  # Each pass of rows has an order of its own.
            dataset.set_state({"format": dataset.get_state()["format"], "pass": number, "rows": 0, "batches": 0})
        if self._saved_at:
            metrics = [np.asarray(variable) for variable in self.model.metrics_variables]
            self._resume = _Skipping(self.model, self._saved_at, metrics)

    def _dataset(self) -> Any:
        """Returns the distributed dataset that `fit` reads; None for other data, and for an iterator of one pass."""
        dataset = getattr(getattr(self.model, "_replicax", None), "dataset", None)
        return dataset if dataset is not None and dataset.can_continue else None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        del logs
        self._epoch, self._step, self._pass = epoch, 0, None
        if self._restored:
            self._generators.draw_again()  # the order of the data, as it was
            self._restored = False
        else:
            self._saved_at = 0
            self._generators.remember()
        self._passed = 0
        if self._given is not None:
            self._take(self._given)
            self._given = None
        if self._resume is not None:
            self._resume.begin()
            self._resume = None
        self._give_others()

    def _give_others(self) -> None:
        """Gives other callbacks what they had counted: before the skipped steps, and after, since these count too."""
        if self._others is not None and self.beside is not None:
            _Others(self.model, self.beside).set_state(self._others)
            if self._step >= self._saved_at:
                self._others = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del logs
        self._step = min(batch + 1, self.params.get("steps") or batch + 1)
        if self._pass is None and (dataset := self._dataset()) is not None:
            state = dataset.get_state()
            if state["batches"] <= batch + 1:  # With `steps_per_epoch`, an epoch may begin inside of a pass.
                self._pass = state["pass"]
        if self._step <= max(self._saved_at, self._passed):  # skipped
            if self._step == self._saved_at:
                self._give_others()
            return
        if self._is_told_to_go():
            self._save_and_exit(self._epoch, self._step)
        elif isinstance(self.save_freq, int) and self._step // self.save_freq > self._saved_at // self.save_freq:
            self._save(self._epoch, self._step)
            self._saved_at = self._step
        elif self._manager.snapshots.is_due():
            number = self._next(self._epoch, self._step)
            self._manager.snapshots.take(number, lambda: self._manager.checkpoint.contents(number))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        del logs
        self._generators.remember()
        if self._is_told_to_go():
            self._save_and_exit(epoch + 1, 0)
        elif self.save_freq == "epoch":
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: Any = None) -> None:
        del logs
        _close(self._open)
        self._manager.close()
        if self._deletes and jax.process_index() == 0:
            delete_all(absolute(self.directory))

    def _is_told_to_go(self) -> bool:
        return bool(self._open) and self._open[0].check() == "exit"

    def _save(self, epoch: int, step: int) -> None:
        self._manager.save(self._next(epoch, step))

    def _next(self, epoch: int, step: int) -> int:
        """Prepares the model to be saved; returns the number of the save."""
        # Asking for the model has Keras give it its state back.
        assert self.model is not None
        self._manager.checkpoint.add_note("epoch", lambda: epoch)
        self._manager.checkpoint.add_note("step", lambda: step)
        number = None if self._pass is None else self._pass + (step == 0)
        self._manager.checkpoint.add_note("pass", lambda: number)
        if self.beside is not None:
            others = _Others(self.model, self.beside)
            self._manager.checkpoint.add_note(_OTHERS, lambda: saved_state(_OTHERS, others)["state"])
        self._count += 1
        return self._count

    def _save_and_exit(self, epoch: int, step: int) -> None:
        self._save(epoch, step)
        self._manager.close()
        _close(self._open)
        (self._exit_fn or resume_exit)()


class _Others:
    """The history of a `fit`, and what its other callbacks have counted."""

    def __init__(self, model: Any, callbacks: Sequence[Any]):
        self._model, self._callbacks = model, callbacks

    def get_state(self) -> dict[str, Any]:
        history = self._model.history
        return {
            "history": [dict(history.history), list(history.epoch)],
            "callbacks": states_of_callbacks(self._callbacks),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self._model.history.history, self._model.history.epoch = map(copy.copy, state["history"])
        set_callback_states(self._callbacks, state["callbacks"])


class _Generators:
    """The global random generators, as they were when the order of an epoch's data was drawn; a checkpoint has them."""

    def __init__(self) -> None:
        self.remember()

    def remember(self) -> None:
        self._kept = Generators.here()

    def draw_again(self) -> None:
        self._kept.set()

    def get_state(self) -> dict[str, Any]:
        return {"numpy": self._kept.numpys, "python": self._kept.pythons}

    def set_state(self, state: dict[str, Any]) -> None:
        self._kept = Generators.of_json(state["numpy"], state["python"])


class _Skipping:
    """Takes the place of a model's training function until the steps that were made before have been skipped."""

    def __init__(self, model: Any, steps: int, metrics: list[np.ndarray]):
        self._model, self._left, self._metrics = model, steps, metrics
        self.train = model.train_function

    def begin(self) -> None:
        """Called when the epoch begins, after Keras has reset the metrics."""
        for variable, value in zip(self._model.metrics_variables, self._metrics, strict=True):
            variable.assign(value)
        self._logs = self._model.get_metrics_result()
        self._model.train_function = self

    def __call__(self, state: Any, iterator: Iterator[Any]) -> Any:
        due = min(self._left, self._model.steps_per_execution)
        taken = sum(1 for _ in itertools.islice(iterator, due))
        # Keras counts the last steps of an epoch as `steps_per_execution`, also where the data have ended among them.
        self._left = self._left - taken if taken == due else 0
        if self._left == 0:
            self._model.train_function = self.train
        if taken == 0:
            raise StopIteration
        return self._logs, state


def _close(watches: list[PreemptionWatch]) -> None:
    while watches:
        watches.pop().close()


def backups_last(callbacks: list[Any]) -> list[Any]:
    """Returns the callbacks of a `fit` with the backups after those whose state they save, the history among them."""
    import keras

    backups = [each for each in callbacks if isinstance(each, _BackupAndRestore)]
    others = [each for each in callbacks if not isinstance(each, _BackupAndRestore)]
    if backups and not any(isinstance(each, keras.callbacks.History) for each in others):
        others.append(keras.callbacks.History())  # Keras would add it at the end.
    for backup in backups:
        backup.beside = others
    return [*others, *backups]
