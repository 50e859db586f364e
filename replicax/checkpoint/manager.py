"""A directory with the newest checkpoints of a training, written while the training goes on."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import replicax.health as health
from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.meeting import Meeting
from replicax.checkpoint.metadata import FILE
from replicax.checkpoint.store import TIMEOUT_S, UNFINISHED, Contents, Directory, absolute, delete, write_in_place
from replicax.errors import ArgumentError, CheckpointError
from replicax.migration import Advised, called_as

_OVERWRITES = (
    "Step {step} is in {directory} already, and this CheckpointManager has neither written it nor found it there when "
    "it restored: it is replaced. If another training writes there, one of them loses its checkpoints: give each a "
    "directory of its own. If this one goes on from there, call restore_or_initialize() first."
)
_NAME = re.compile(r"\d{8,}")
# What is being written, by directory: also by a manager that an error has left alone, and that nobody can ask any more.
_running: dict[Path, threading.Thread] = {}


class CheckpointManager(Advised):
    """Saves a training's state every so often, in the background, and keeps the newest checkpoints.

    Each checkpoint is a directory named by its step. It appears under its name when all of it is on disk: after a kill
    at any moment, `latest_step` names a complete one. An old one is deleted when the new one is durable, not before.
    With several processes all of them make a manager of the same directory, which all must see, and call the same
    methods in the same order; each writes the parts that its devices hold, and the chief commits.

    A directory belongs to one training. A `save` that replaces a step which this manager has neither written nor found
    there when it restored warns of it (`UserWarning`).

    Args:
        directory: Where the checkpoints are; it is made by the first save.
        max_to_keep: Number of checkpoints to keep; None for all.
        save_interval_steps: `save` does nothing at a step that is no multiple of this, unless it is forced.
        async_: Whether `save` returns while the checkpoint is being written. The values are copied first, so training
            may go on. On an accelerator they are copied to host memory.
        objects: What to save, by name, as for `rx.Checkpoint`.
        checkpoint: What to save, as an `rx.Checkpoint`; instead of `objects`.
        timeout: How long to wait for the other processes when they save, in seconds.

    Attributes:
        directory: Where the checkpoints are.
        checkpoint: The `rx.Checkpoint` that is saved.

    Raises:
        ArgumentError: An argument has the wrong type or value.

    Example:
        >>> import tempfile
        >>> w = Variable(0.0)
        >>> with CheckpointManager(tempfile.mkdtemp(), max_to_keep=2, objects={"w": w}) as manager:
        ...     for step in range(1, 6):
        ...         saved = manager.save(step)
        >>> manager.all_steps()
        [4, 5]
    """

    @called_as("tf.train.CheckpointManager")
    def __init__(
        self,
        directory: Directory,
        max_to_keep: int | None = 3,
        save_interval_steps: int = 1,
        async_: bool = True,
        objects: Mapping[str, Any] | None = None,
        checkpoint: Checkpoint | None = None,
        timeout: float = TIMEOUT_S,
    ):
        for name, number in (("max_to_keep", max_to_keep), ("save_interval_steps", save_interval_steps)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise ArgumentError(f"`{name}` is a whole number of at least 1, got {number!r}.")
        if (objects is None) == (checkpoint is None):
            raise ArgumentError("Pass either `objects` or a `checkpoint`, and not both.")
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            raise ArgumentError(f"`checkpoint` is an rx.Checkpoint, got {checkpoint!r:.100}.")
        self.directory = absolute(directory)
        self.checkpoint = Checkpoint(dict(objects or {})) if checkpoint is None else checkpoint
        self._max_to_keep, self._interval, self._async, self._timeout = (
            max_to_keep,
            save_interval_steps,
            async_,
            timeout,
        )
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._saved: set[int] = set()  # by this manager
        self._known: set[int] = set()  # written by this manager, or there when it restored
        self._has_cleaned = False

    @called_as("tf.train.CheckpointManager.save")
    def save(self, step: int, force: bool = False, **objects: Any) -> bool:
        """Saves the state at a step; waits for a save that is still under way.

        Args:
            step: The number of the step: of the steps that have been made.
            force: Whether to save also at a step that is no multiple of `save_interval_steps`.
            **objects: New values for the checkpoint's objects of these names.

        Returns:
            Whether it is saved; False also for a step that this manager has saved before.

        Raises:
            CheckpointError: This or the last background save failed: the disk is full, or another process failed or
                did not come.
        """
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 0:
            raise ArgumentError(f"`step` is a whole number of at least 0, got {step!r}.")
        self._raise_failure()
        if step in self._saved or not (force or step % self._interval == 0):
            return False
        self.wait_until_finished()
        contents = self.checkpoint.contents(int(step), objects)
        if self._async:
            contents = Contents(_copied(contents.arrays), contents.state, contents.step, contents.notes)
        meeting = Meeting(f"Saving step {step} to {self.directory}", self._timeout)
        if meeting.is_chief and step not in self._known and (self.path(int(step)) / FILE).is_file():
            warnings.warn(_OVERWRITES.format(step=step, directory=self.directory), stacklevel=2)
        self._known.add(int(step))
        self._saved.add(int(step))
        if self._async:
            self._thread = threading.Thread(
                target=self._save_in_background, args=(int(step), contents, meeting), name="replicax-checkpoint"
            )
            _running[self.directory] = self._thread
            self._thread.start()
        else:
            self._save(int(step), contents, meeting)
        return True

    @health.phase(health.CHECKPOINT)
    def wait_until_finished(self) -> None:
        """Returns when nothing is being written any more.

        Raises:
            CheckpointError: The background save failed.
        """
        thread = _running.pop(self.directory, None)
        if thread is not None:
            thread.join()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_failure()

    def all_steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints in the directory, in ascending order."""
        if not self.directory.is_dir():
            return []
        names = [path.name for path in self.directory.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(int(name) for name in names if (self.directory / name / FILE).is_file())

    def latest_step(self) -> int | None:
        """Returns the step of the newest complete checkpoint; None if there is none."""
        return max(self.all_steps(), default=None)

    def path(self, step: int) -> Path:
        """Returns where the checkpoint of a step is, or will be."""
        return self.directory / f"{step:08d}"

    def restore(self, step: int | None = None, partial: bool = False, verify: bool = True) -> dict[str, Any]:
        """Restores a checkpoint and returns the values in it, as `rx.Checkpoint.restore` does.

        Args:
            step: Which; by default the newest. All processes restore the one that the chief finds.
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
        restored = self.checkpoint.restore(self.path(step), partial, verify)
        self._known.update(self.all_steps())
        return restored

    def restore_or_initialize(self) -> int | None:
        """Restores the newest checkpoint if there is one; returns its step, or None."""
        self.wait_until_finished()
        step = self._agreed_latest()
        if step is not None:
            self.checkpoint.restore(self.path(step))
            self._known.update(self.all_steps())
        return step

    def close(self) -> None:
        """Waits until nothing is being written any more; see `wait_until_finished`. May be called twice."""
        self.wait_until_finished()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except CheckpointError as failure:
            error.add_note(f"The last checkpoint was not saved either: {failure}")

    def _agreed_latest(self) -> int | None:
        meeting = Meeting(f"Looking for the newest checkpoint in {self.directory}", self._timeout)
        meeting.check_same("directory", str(self.directory))
        latest = self.latest_step() if meeting.is_chief else None
        said = meeting.hear_chief("latest step", "" if latest is None else str(latest))
        return int(said) if said else None

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _save_in_background(self, step: int, contents: Contents, meeting: Meeting) -> None:
        try:
            self._save(step, contents, meeting)
        except BaseException as error:
            self._failure = error

    def _save(self, step: int, contents: Contents, meeting: Meeting) -> None:
        try:
            if meeting.is_chief and not self._has_cleaned:
                self._delete_unfinished()
            self._has_cleaned = True
            write_in_place(self.path(step), contents, meeting, committed=lambda: self._delete_old(step))
        except BaseException as error:
            self._saved.discard(step)
            if isinstance(error, CheckpointError) or not isinstance(error, Exception):
                raise
            raise CheckpointError(f"Step {step} could not be saved to {self.directory}: {error!r}") from error

    def _delete_unfinished(self) -> None:
        """Deletes what an earlier run, killed while it wrote, has left."""
        for path in self.directory.glob(f".*{UNFINISHED}"):
            shutil.rmtree(path, ignore_errors=True)

    def _delete_old(self, newest: int) -> None:
        if self._max_to_keep is None:
            return
        others = [step for step in self.all_steps() if step != newest]
        for step in others[: max(0, len(others) + 1 - self._max_to_keep)]:
            with contextlib.suppress(OSError):  # It cannot be deleted, or was: no reason to call the new one failed.
                delete(self.path(step))


def _copied(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns copies of arrays: training overwrites the buffers of its state in place."""
    return {name: _copy(array) for name, array in arrays.items()}


def _copy(array: Any) -> Any:
    if not isinstance(array, jax.Array):
        return np.array(array)
    device: Any = next(iter(array.sharding.addressable_devices))
    if device.platform != "cpu" and "pinned_host" in {memory.kind for memory in device.addressable_memories()}:
        # Not to the device's memory, where there may be no room for another copy.
        return jax.device_put(array, array.sharding.with_memory_kind("pinned_host"))
    return jax.numpy.copy(array)
