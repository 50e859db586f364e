"""`rx.CheckpointManager`: a directory with the newest checkpoints of a training, written while it goes on."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import jax
import numpy as np

import replicax.compat.keras as keras_door
import replicax.runtime.activity as activity
from replicax.checkpoint.background import wait_for
from replicax.checkpoint.checkpoint import Checkpoint, restore_within
from replicax.checkpoint.checkpoint_folder import CheckpointFolder
from replicax.checkpoint.contents import ToSave
from replicax.checkpoint.coordination import TIMEOUT_S, Coordination, coordinated
from replicax.checkpoint.foreign import tensorflow_checkpoints
from replicax.checkpoint.joining import is_newcomer, join, name_state
from replicax.checkpoint.load_status import LoadStatus
from replicax.checkpoint.manager_arguments import (
    DEFAULT_TO_KEEP,
    check_counts,
    checked_init,
    checked_name,
    checkpoint_of,
    keep_policies,
    positional,
    save_policies,
    whole_number,
)
from replicax.checkpoint.numbered import latest_checkpoint
from replicax.checkpoint.places import Directory, Place, absolute
from replicax.checkpoint.policies import KeepPolicy, SavePolicy, go_on_from, notes_of
from replicax.checkpoint.saving import RunningSave, begin_save
from replicax.checkpoint.snapshots import MemorySnapshots, RestoredSnapshot
from replicax.checkpoint.variable_names import keras_objects
from replicax.checks import checked_seconds, explained
from replicax.compat.interpreter import STARTS_THREADS_AT_END
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.contracts.variable_access import VariableLike, is_variable
from replicax.errors import CheckpointError, ElasticError
from replicax.runtime import clock
from replicax.typing import PyTree
from replicax.values.tracebacks import entry_point

_AGAIN = (
    "Step {step} is not saved: this manager has saved it before, and step {last} since. If the training has gone back, "
    "restore the earlier step by the manager; if another training begins, count its steps on, or give it a folder."
)


class CheckpointManager(Advised):
    """Saves a training's state every so often, in the background, and keeps the newest checkpoints.

    Each checkpoint is a directory named by its step. It appears under its name only when it is complete: after a kill
    at any moment, `latest_step` names a complete one. An old one is deleted only when the new one is durable.
    With several processes, all of them make a manager of the same directory, which all must see, and call the same
    methods in the same order; each writes the parts that its devices hold, and the chief commits. Under `replicax run
    --restarts`, a `save` before it is time may take a snapshot in memory; `restore_or_initialize` goes on from it.

    A directory belongs to one training. Steps that a manager has neither written nor found there when it restored may
    be another training's: a first `save` below such a step, and one that replaces it, give a `UserWarning`. They count
    as older than what the manager has written, whatever their numbers, and none above it is deleted. After `restore` of
    an earlier step the same is true of those above it, until they are replaced.

    Its arguments without keywords are the directory, or those of TensorFlow's manager: the checkpoint, the directory
    and `max_to_keep`.

    Args:
        *positional_arguments: `directory`; or `checkpoint`, `directory`, `max_to_keep`.
        checkpoint: What to save, as an `rx.Checkpoint`.
        directory: The folder of the checkpoints; the first save makes it.
        max_to_keep: Number of checkpoints to keep; None for all.
        save_interval_steps: `save` does nothing at a step that is not a multiple of this, unless it is forced.
        async_: Whether `save` returns while the checkpoint is being written. The values are copied first, so training
            may go on. Those on an accelerator are copied to host memory. When the script ends, the process waits for
            the last save; if it fails, the exit code is 1. (Python 3.12.0 to 3.12.2 cannot wait: there `save` does.)
        objects: What to save, by name, as for `rx.Checkpoint`; instead of `checkpoint`.
        timeout: How long to wait for the other processes when they save or restore, in seconds.
        keep_checkpoint_every_n_hours: A checkpoint that is not among the newest any more is kept for good if it was
            written so many hours after the last one that is (or after the manager was made).
        checkpoint_name: The beginning of the directories' names: `"ckpt"` makes `ckpt-1`. By default a name is the
            number, in eight digits.
        step_counter: An integer variable that counts the training's steps, for `checkpoint_interval`.
        checkpoint_interval: `save` does nothing before `step_counter` has grown by this since the last save.
        init_fn: Called by `restore_or_initialize` if there is nothing to restore.
        save_when: In the place of `save_interval_steps` and `checkpoint_interval`: policies of
            `rx.checkpoint.policies`, such as `EverySeconds(600)`; `save` does nothing unless one of them says so.
        keep: In the place of `max_to_keep` and `keep_checkpoint_every_n_hours`: policies such as `Best(3, accuracy)`;
            what one of them keeps is kept.

    Attributes:
        directory: The folder of the checkpoints.
        checkpoint: The `rx.Checkpoint` that is saved.
        snapshots: Those in memory.

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
        max_to_keep: int | None = DEFAULT_TO_KEEP,
        save_interval_steps: int = 1,
        async_: bool = True,
        objects: Mapping[str, PyTree] | None = None,
        timeout: float = TIMEOUT_S,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str | None = None,
        step_counter: VariableLike | None = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], object] | None = None,
        save_when: SavePolicy | Sequence[SavePolicy] | None = None,
        keep: KeepPolicy | Sequence[KeepPolicy] | None = None,
    ):
        checkpoint, directory, max_to_keep = positional(positional_arguments, checkpoint, directory, max_to_keep)
        check_counts(
            max_to_keep=max_to_keep, save_interval_steps=save_interval_steps, checkpoint_interval=checkpoint_interval
        )
        self.directory = absolute(directory)
        self.checkpoint = checkpoint_of(checkpoint, objects)
        kept = keep_policies(keep, max_to_keep, keep_checkpoint_every_n_hours)
        self._folder = CheckpointFolder(self.directory, checked_name(checkpoint_name), kept)
        self._save_when = save_policies(save_when, save_interval_steps, step_counter, checkpoint_interval)
        for name, note in notes_of([*kept, *self._save_when]).items():
            self.checkpoint.add_note(name, note)
        self._growth = checkpoint_interval
        # Otherwise a save under way could not be finished when the script ends.
        self._async = async_ and STARTS_THREADS_AT_END
        self._timeout = checked_seconds("timeout", timeout, infinite=True)
        self._init_fn = checked_init(init_fn)
        self._saved: set[int] = set()  # by this manager
        self._restored: int | None = None  # the step from which the training goes on, until its next call of `save`
        self._running: RunningSave | None = None
        self.snapshots = MemorySnapshots.of(self.directory)
        self._progress = Progress(self.checkpoint, step_counter)
        self.checkpoint.keepers.add(self)

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint, None if there is none; waits for a save that is under way.

        In a directory that has only checkpoints of TensorFlow's it is the path of the newest of these.
        """
        self.wait_until_finished()
        step = self.latest_step()
        return latest_checkpoint(self.directory) if step is None else str(self.path(step))

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints, oldest first, without those that are kept for good; waits for a save, too."""
        self.wait_until_finished()
        return [str(each.path) for each in self._folder.passing()]

    @property
    def checkpoint_interval(self) -> int | None:
        """By how much `step_counter` grows between saves."""
        return self._growth

    @entry_point
    @called_as("tf.train.CheckpointManager.save")
    @clock.section(clock.CHECKPOINT)
    def save(
        self,
        /,
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
            time, or because this manager has saved that step before, and has not gone back to an earlier one since.

        Raises:
            ArgumentError: `step` is not a whole number of at least 0.
            CheckpointError: This or the last background save failed: the disk is full, or another process failed or
                did not come.
        """
        number = None if step is None else whole_number(step, "step")
        self._raise_failure()
        if self._restored is not None:  # Whoever only looks at earlier checkpoints saves none.
            self._folder.go_back(self._restored)
            self._saved, self._restored = self._behind(self._saved), None
        if number in self._saved or not (force or not check_interval or self._is_due(number)):
            if number in self._saved and number < (last := max(self._saved)) and jax.process_index() == 0:
                warnings.warn(_AGAIN.format(step=number, last=last), stacklevel=3)
            if number is not None and number not in self._saved and self.snapshots.is_due():
                self.snapshots.take(number, lambda: self.checkpoint.contents(number, objects))
            return None
        self.wait_until_finished()
        self.checkpoint.save_counter.assign_add(1)
        for policy in self._save_when:
            policy.restart()
        at = int(self.checkpoint.save_counter.numpy()) if number is None else number
        self._progress.note(at)
        path = self.path(at)
        if jax.process_index() == 0:
            self._folder.warn_of_others(at)
        self._folder.known.add(at)
        self._saved.add(at)
        self._running = begin_save(
            f"Saving step {at} to {self.directory}",
            path,
            lambda: path,
            ToSave(lambda: self.checkpoint.prepared(number, objects), self.checkpoint.contents_of),
            self._timeout,
            in_background=self._async,
            before=self._folder.clean,
            committed=lambda: self._folder.delete_old(at),
            failed=lambda: self._saved.discard(at),
        )
        if not self._async:
            self.wait_until_finished()
        return str(path)

    def _behind(self, steps: set[int]) -> set[int]:
        """Returns those of some steps that the training has behind it, after it may have gone back."""
        return {step for step in steps if self._restored is None or step <= self._restored}

    def _is_due(self, step: int | None) -> bool:
        due = [policy.is_due(step) for policy in self._save_when]  # All are asked: some count the calls.
        return any(due)

    @entry_point
    @activity.phase(activity.CHECKPOINT)
    def wait_until_finished(self) -> None:
        """Returns when nothing is being written any more.

        Raises:
            CheckpointError: The background save failed.
        """
        wait_for(self.directory)
        save, self._running = self._running, None
        if save is not None:
            save.wait()

    def all_steps(self) -> list[int]:
        """Returns the steps of the complete checkpoints in the directory, in ascending order."""
        return [each.number for each in self._folder.complete()]

    def latest_step(self) -> int | None:
        """Returns the step of the newest complete checkpoint; None if there is none.

        That is the highest number; if there are steps that this manager has written or found when it restored, it is
        the highest of these.
        """
        return self._folder.latest_step()

    @explained
    def path(self, step: int) -> Place:
        """Returns the path of the checkpoint of a step, which need not exist."""
        return self._folder.path(step)

    @entry_point
    @explained
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
        if step is None and (found := self._restored_snapshot()) is not None:
            return found.status
        if step is None:
            step = self._agreed_latest()
        if step is None:
            raise CheckpointError(f"There is no complete checkpoint in {self.directory}.")
        return self._restore(step, partial, verify)

    @entry_point
    def restore_or_initialize(self) -> int | None:
        """Restores the newest checkpoint if there is one; otherwise calls `init_fn`.

        In a directory that has only checkpoints of TensorFlow's, which its manager has written, it restores the newest
        of these.

        Returns:
            The step that was restored, or None. (`latest_checkpoint` is its path, which TensorFlow returns here.) In a
            worker that joins an elastic job the step at which the others are: it takes their state, and reads nothing.

        Raises:
            ElasticError: This worker joins others, and nothing in the checkpoint says at which step they are.
        """
        if is_newcomer():
            join(self.checkpoint)
            return self._progress.step_of_others(self.directory)
        step = self._restored_or_initialized()
        if step is not None:
            self._progress.note(step)
        name_state(self.checkpoint)
        return step

    def _restored_or_initialized(self) -> int | None:
        self.wait_until_finished()
        if (found := self._restored_snapshot()) is not None:
            return found.step
        step = self._agreed_latest()
        of_tensorflow = latest_checkpoint(self.directory) if step is None else None
        if step is not None:
            self._restore(step)
        elif of_tensorflow is not None:
            restore_within(self._timeout, self.checkpoint, of_tensorflow)
            return tensorflow_checkpoints().open_checkpoint(of_tensorflow).step or 0
        elif self._init_fn is not None:
            self._init_fn()
        return step

    def _agreed_latest(self) -> int | None:
        """Returns the newest step as the chief sees it; all processes call this together."""

        def look(coordination: Coordination) -> int | None:
            coordination.check_same("directory", str(self.directory))
            latest = self.latest_step() if coordination.is_chief else None
            said = coordination.from_chief("latest step", "" if latest is None else str(latest))
            return int(said) if said else None

        name = f"Looking for the newest checkpoint in {self.directory}"
        return coordinated(name, self._timeout, look, alone=self.latest_step)

    def _restore(self, step: int, partial: bool = False, verify: bool = True) -> LoadStatus:
        status = restore_within(self._timeout, self.checkpoint, self._folder.path(step), partial, verify)
        self.snapshots.clear()  # It is of a step that is now made again.
        self._go_on_from(step)
        return status

    def _restored_snapshot(self) -> RestoredSnapshot | None:
        return self.snapshots.restore(self.checkpoint, self.latest_step, self._go_on_from, self._timeout)

    def _go_on_from(self, step: int) -> None:
        # A training that has begun on its own is still the same when it goes back to one of its steps.
        self._restored = step
        found = self._folder.complete()
        self._folder.known.update([step] if self._saved else [each.number for each in found])
        go_on_from(self._save_when, found)
        for policy in self._save_when:
            policy.restart()

    def note_restored(self, path: Place) -> None:
        """Notes that the checkpoint was restored from a path: if it is one of this manager's, `save` goes on there."""
        self._restored = next((step for step in self._folder.known if self.path(step) == path), self._restored)

    def get_state(self) -> dict[str, PyTree]:
        """Returns what a manager in a worker that joins an elastic job has to know."""
        known, saved = sorted(self._behind(self._folder.known)), sorted(self._behind(self._saved))
        save_when = [policy.get_state() for policy in self._save_when]
        return {"known": known, "saved": saved, "save_when": save_when, **self._progress.get_state()}

    def set_state(self, state: Mapping[str, PyTree]) -> None:
        """Goes on where a manager in another worker is, which has returned `state`."""
        self._folder.known.update(state["known"])
        self._saved.update(state["saved"])
        for policy, own in zip(self._save_when, state["save_when"], strict=True):
            policy.set_state(own)
        self._folder.is_clean = True
        self._progress.set_state(state)

    def close(self) -> None:
        """Waits until nothing is being written any more; see `wait_until_finished`. May be called twice."""
        self.wait_until_finished()
        self.snapshots.wait()

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

    def _raise_failure(self) -> None:
        if self._running is not None:
            self._running.raise_failure()


_STEP = "step"


class Progress:
    """Counts steps since the last save or restore, by what a checkpoint tracks: for a worker that joins in between."""

    def __init__(self, checkpoint: Checkpoint, counter: VariableLike | None):
        self._checkpoint, self._counter = checkpoint, counter
        self._step: int | None = 0
        self._updates = self._count()

    def note(self, step: int) -> None:
        """Notes that the training is at a step."""
        self._step, self._updates = step, self._count()

    def get_state(self) -> dict[str, PyTree]:
        """Returns at which step the training is now."""
        return {_STEP: self._now()}

    def set_state(self, state: Mapping[str, PyTree]) -> None:
        """Notes at which step another worker's training is; the objects have the state that it has there."""
        self._step, self._updates = state[_STEP], self._count()

    def step_of_others(self, directory: Place) -> int:
        """Returns the step at which the others were when they gave their state."""
        if self._step is None:
            raise ElasticError(
                f"The manager of {directory} cannot say at which step the others are: its checkpoint tracks nothing "
                "that counts steps. Give the manager a step_counter, or add step=rx.Variable(0) to the checkpoint and "
                "count it up in each step."
            )
        return self._step

    def _now(self) -> int | None:
        # The first that there is: the manager's `step_counter`; a variable called `step` in the checkpoint; the number
        # of updates of the first Keras optimizer in it since a step whose number was known.
        counter = self._counter
        if counter is None and is_variable(self._checkpoint.objects.get(_STEP)):
            counter = self._checkpoint.objects[_STEP]
        if counter is not None:
            return whole_number(counter, _STEP)
        updates = self._count()
        if updates is None or self._updates is None or self._step is None:
            return None
        return self._step + updates - self._updates

    def _count(self) -> int | None:
        optimizer = self._optimizer()
        return None if optimizer is None else int(np.asarray(keras_door.steps_of(optimizer)))

    def _optimizer(self) -> Any:
        if "keras" not in sys.modules:
            return None
        import keras

        found = keras_objects(self._checkpoint.objects).values()
        return next((each for each in found if isinstance(each, keras.optimizers.Optimizer)), None)
