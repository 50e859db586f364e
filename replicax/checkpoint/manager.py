"""`rx.CheckpointManager`: a directory with the newest checkpoints of a training, written while it goes on."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import jax

import replicax.checkpoint.background as background
import replicax.health as health
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.contents import Contents
from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.copies import copied
from replicax.checkpoint.load_status import LoadStatus
from replicax.checkpoint.manager_arguments import (
    checked_name,
    checkpoint_of,
    permanent_checkpoints,
    positional,
    whole_number,
)
from replicax.checkpoint.metadata import FILE
from replicax.checkpoint.numbered import NumberedCheckpoint, name_of, numbered
from replicax.checkpoint.writing import TIMEOUT_S, UNFINISHED, Directory, absolute, delete, write_in_place
from replicax.checks import checked_int
from replicax.errors import ArgumentError, CheckpointError
from replicax.migration import Advised, called_as
from replicax.typing import PyTree
from replicax.variable_access import VariableLike

_STRANGERS = (
    "{what}, and this CheckpointManager has neither written it nor found it there when it restored{so}. If another "
    "training writes there, one of them loses its checkpoints: give each a directory of its own. If this one goes on "
    "from there, call restore_or_initialize() first."
)
_log = logging.getLogger(__name__)


class CheckpointManager(Advised):
    """Saves a training's state every so often, in the background, and keeps the newest checkpoints.

    Each checkpoint is a directory named by its step. It appears under its name only when it is complete: after a kill
    at any moment, `latest_step` names a complete one. An old one is deleted only when the new one is durable.
    With several processes, all of them make a manager of the same directory, which all must see, and call the same
    methods in the same order; each writes the parts that its devices hold, and the chief commits.

    A directory belongs to one training. Steps that a manager has neither written nor found there when it restored may
    be another training's: a first `save` below such a step, and one that replaces it, give a `UserWarning`. They count
    as older than what the manager has written, whatever their numbers, and none above it is deleted.

    Its arguments without keywords are the directory, or those of TensorFlow's manager: the checkpoint, the directory
    and `max_to_keep`.

    Args:
        *positional_arguments: `directory`; or `checkpoint`, `directory`, `max_to_keep`.
        checkpoint: What to save, as an `rx.Checkpoint`.
        directory: The folder of the checkpoints; the first save makes it.
        max_to_keep: Number of checkpoints to keep; None for all.
        save_interval_steps: `save` does nothing at a step that is not a multiple of this, unless it is forced.
        async_: Whether `save` returns while the checkpoint is being written. The values are copied first, so training
            may go on. Those on an accelerator are copied to host memory.
        objects: What to save, by name, as for `rx.Checkpoint`; instead of `checkpoint`.
        timeout: How long to wait for the other processes when they save, in seconds.
        keep_checkpoint_every_n_hours: A checkpoint that is not among the newest any more is kept for good if it was
            written so many hours after the last one that is (or after the manager was made).
        checkpoint_name: The beginning of the directories' names: `"ckpt"` makes `ckpt-1`. By default a name is the
            number, in eight digits.
        step_counter: An integer variable that counts the training's steps, for `checkpoint_interval`.
        checkpoint_interval: `save` does nothing before `step_counter` has grown by this since the last save.
        init_fn: Called by `restore_or_initialize` if there is nothing to restore.

    Attributes:
        directory: The folder of the checkpoints.
        checkpoint: The `rx.Checkpoint` that is saved.

    Raises:
        ArgumentError: An argument has the wrong type or value.

    Example:
        >>> import tempfile
        >>> w = Variable(0.0)
        >>> with CheckpointManager(tempfile.mkdtemp(), max_to_keep=2, objects={"w": w}) as manager:
        ...     for step in range(1, 6):
        ...         path = manager.save(step)
        >>> manager.all_steps()
        [4, 5]
    """

    @called_as("tf.train.CheckpointManager")
    def __init__(
        self,
        *positional_arguments: Checkpoint | Directory | int | None,
        checkpoint: Checkpoint | None = None,
        directory: Directory | None = None,
        max_to_keep: int | None = 3,
        save_interval_steps: int = 1,
        async_: bool = True,
        objects: Mapping[str, PyTree] | None = None,
        timeout: float = TIMEOUT_S,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str | None = None,
        step_counter: VariableLike | None = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], object] | None = None,
    ):
        checkpoint, directory, max_to_keep = positional(positional_arguments, checkpoint, directory, max_to_keep)
        for name, number in (
            ("max_to_keep", max_to_keep),
            ("save_interval_steps", save_interval_steps),
            ("checkpoint_interval", checkpoint_interval),
        ):
            if number is not None:
                checked_int(name, number, least=1)
        self.directory = absolute(directory)
        self.checkpoint = checkpoint_of(checkpoint, objects)
        self._prefix = checked_name(checkpoint_name)
        self._max_to_keep, self._interval, self._async, self._timeout = (
            max_to_keep,
            save_interval_steps,
            async_,
            timeout,
        )
        if checkpoint_interval is not None and (step_counter is None or save_interval_steps != 1):
            raise ArgumentError(
                "`checkpoint_interval` is the growth of `step_counter` between saves, so it needs one, and excludes "
                "`save_interval_steps`."
            )
        self._counter, self._counter_interval = step_counter, checkpoint_interval
        self._last_count: int | None = None  # what the counter was at the last save or restore
        self._kept = permanent_checkpoints(self.directory, keep_checkpoint_every_n_hours)
        if init_fn is not None and not callable(init_fn):
            raise ArgumentError(f"`init_fn` is a function or None, got {init_fn!r:.100}.")
        self._init_fn = init_fn
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._saved: set[int] = set()  # by this manager
        self._known: set[int] = set()  # written by this manager, or there when it restored
        self._has_cleaned = False

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint, None if there is none; waits for a save that is under way."""
        self.wait_until_finished()
        step = self.latest_step()
        return None if step is None else str(self.path(step))

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints, oldest first, without those that are kept for good; waits for a save, too."""
        self.wait_until_finished()
        return [str(each.path) for each in sorted(self._passing(), key=self._age)]

    @property
    def checkpoint_interval(self) -> int | None:
        """By how much `step_counter` grows between saves."""
        return self._counter_interval

    @called_as("tf.train.CheckpointManager.save")
    def save(
        self,
        step: int | jax.Array | VariableLike | None = None,
        check_interval: bool = True,
        *,
        force: bool = False,
        **objects: PyTree,
    ) -> str | None:
        """Saves the state at a step; first waits for a save that is still under way.

        Args:
            step: The number of steps that have been made: a whole number, or a variable with one. By default the number
                of saves, the checkpoint's `save_counter`.
            check_interval: Whether to save only when `save_interval_steps` or `checkpoint_interval` says so.
            force: Whether to save whatever they say; the same as `check_interval=False`.
            **objects: New values for the checkpoint's objects of these names.

        Returns:
            The path of the checkpoint, which may still be being written; None if nothing was saved, because it was not
            time, or because this manager has saved that step before.

        Raises:
            ArgumentError: `step` is not a whole number of at least 0.
            CheckpointError: This or the last background save failed: the disk is full, or another process failed or
                did not come.
        """
        number = None if step is None else whole_number(step, "step")
        self._raise_failure()
        if number in self._saved or not (force or not check_interval or self._is_time(number)):
            return None
        self.wait_until_finished()
        self.checkpoint.save_counter.assign_add(1)
        contents = self.checkpoint.contents(number, objects)
        if self._counter_interval is not None:
            self._last_count = whole_number(self._counter, "step_counter")
        if number is None:
            number = int(self.checkpoint.save_counter.numpy())
        self._begin(number, contents)
        return str(self.path(number))

    def _is_time(self, number: int | None) -> bool:
        if self._counter_interval is not None:
            count = whole_number(self._counter, "step_counter")
            return self._last_count is None or count >= self._last_count + self._counter_interval
        return number is None or number % self._interval == 0

    def _begin(self, step: int, contents: Contents) -> None:
        """Writes a checkpoint, or starts a thread that writes it."""
        if self._async:
            contents = Contents(copied(contents.arrays), contents.state, contents.step, contents.notes)
        coordination = Coordination(f"Saving step {step} to {self.directory}", self._timeout)
        if coordination.is_chief:
            self._warn_of_strangers(step)
        self._known.add(step)
        self._saved.add(step)
        if self._async:
            self._thread = threading.Thread(
                target=self._save_in_background, args=(step, contents, coordination), name="replicax-checkpoint"
            )
            background.begin(self.directory, self._thread)
        else:
            self._save(step, contents, coordination)

    def _warn_of_strangers(self, step: int) -> None:
        """Warns of steps that may be another training's."""
        if step in self._known:
            return
        if (self.path(step) / FILE).is_file():
            what, so = f"Step {step} is in {self.directory} already", ": it is replaced"
        else:
            latest = None if self._known else self.latest_step()
            if latest is None or latest <= step:
                return
            what = f"Step {latest} is in {self.directory}, and step {step} is being saved"
            so = ". It stays there, and whoever restores next gets it as the newest"
        warnings.warn(_STRANGERS.format(what=what, so=so), stacklevel=4)

    @health.phase(health.CHECKPOINT)
    def wait_until_finished(self) -> None:
        """Returns when nothing is being written any more.

        Raises:
            CheckpointError: The background save failed.
        """
        background.wait_for(self.directory)
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_failure()

    def all_steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints in the directory, in ascending order."""
        return [each.number for each in self._found()]

    def _found(self) -> list[NumberedCheckpoint]:
        return [each for each in numbered(self.directory) if each.prefix == self._prefix]

    def _passing(self) -> list[NumberedCheckpoint]:
        """Returns the checkpoints that are not kept for good."""
        kept = self._kept.names() if self._kept is not None else ()
        return [each for each in self._found() if each.path.name not in kept]

    def latest_step(self) -> int | None:
        """Returns the step of the newest complete checkpoint; None if there is none.

        That is the highest number; if there are steps that this manager has written or found when it restored, it is
        the highest of these.
        """
        newest = max(self._found(), key=self._age, default=None)
        return None if newest is None else newest.number

    def _age(self, each: NumberedCheckpoint) -> tuple[bool, int]:
        return each.number in self._known, each.number

    def path(self, step: int) -> Path:
        """Returns the path of the checkpoint of a step, which need not exist."""
        return self.directory / name_of(step, self._prefix)

    def restore(self, step: int | None = None, partial: bool = False, verify: bool = True) -> LoadStatus:
        """Restores a checkpoint and returns the values in it, as `rx.Checkpoint.restore` does.

        Args:
            step: The step; by default the newest. All processes restore the one that the chief finds.
            partial: Whether the checkpoint and the objects may have names that the other lacks.
            verify: Whether to compare the checksums of what is read, beside the reading.

        Raises:
            CheckpointError: There is no checkpoint, it is damaged, or it does not match the objects.
        """
        self.wait_until_finished()
        if step is None:
            step = self._agreed_latest()
        if step is None:
            raise CheckpointError(f"There is no complete checkpoint in {self.directory}.")
        return self._restore(step, partial, verify)

    def restore_or_initialize(self) -> int | None:
        """Restores the newest checkpoint if there is one; otherwise calls `init_fn`.

        Returns:
            The step that was restored, or None. (`latest_checkpoint` is its path, which TensorFlow returns here.)
        """
        self.wait_until_finished()
        step = self._agreed_latest()
        if step is not None:
            self._restore(step)
        elif self._init_fn is not None:
            self._init_fn()
        return step

    def _restore(self, step: int, partial: bool = False, verify: bool = True) -> LoadStatus:
        status = self.checkpoint.restore(self.path(step), partial=partial, verify=verify)
        # A training that has begun on its own is still the same when it goes back to one of its steps.
        self._known.update([step] if self._saved else self.all_steps())
        if self._counter_interval is not None:
            self._last_count = whole_number(self._counter, "step_counter")
        return status

    def close(self) -> None:
        """Waits until nothing is being written any more; see `wait_until_finished`. May be called twice."""
        self.wait_until_finished()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except CheckpointError as failure:
            error.add_note(f"The last checkpoint was not saved either: {failure}")

    def _agreed_latest(self) -> int | None:
        coordination = Coordination(f"Looking for the newest checkpoint in {self.directory}", self._timeout)
        coordination.check_same("directory", str(self.directory))
        latest = self.latest_step() if coordination.is_chief else None
        said = coordination.from_chief("latest step", "" if latest is None else str(latest))
        return int(said) if said else None

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _save_in_background(self, step: int, contents: Contents, coordination: Coordination) -> None:
        try:
            self._save(step, contents, coordination)
        except BaseException as error:
            self._failure = error
            # The next call raises it; but the program may make no further call.
            _log.error("%s", error)

    def _save(self, step: int, contents: Contents, coordination: Coordination) -> None:
        try:
            if coordination.is_chief and not self._has_cleaned:
                self._delete_unfinished()
            self._has_cleaned = True
            write_in_place(self.path(step), contents, coordination, committed=lambda: self._delete_old(step))
        except BaseException as error:
            self._saved.discard(step)
            if isinstance(error, CheckpointError) or not isinstance(error, Exception):
                raise
            raise CheckpointError(f"Step {step} could not be saved to {self.directory}: {error!r}") from error

    def _delete_unfinished(self) -> None:
        """Deletes what an earlier run has left that was killed while it wrote."""
        for path in self.directory.glob(f".*{UNFINISHED}"):
            shutil.rmtree(path, ignore_errors=True)

    def _delete_old(self, newest: int) -> None:
        if self._max_to_keep is None:
            return
        others = [each for each in self._passing() if each.number < newest or each.number in self._known - {newest}]
        old = others[: max(0, len(others) + 1 - self._max_to_keep)]
        for each in old if self._kept is None else self._kept.rest(old):
            with contextlib.suppress(OSError):  # That an old one cannot be deleted does not make the new one fail.
                delete(each.path)
