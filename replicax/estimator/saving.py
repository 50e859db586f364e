"""The checkpoints of one training: when they are saved, and which listeners are called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from replicax.checkpoint import CheckpointManager
from replicax.estimator.agreed_action import Together
from replicax.estimator.built_model import BuiltModel
from replicax.estimator.checkpoint_saver import CheckpointSaverHook, tell
from replicax.estimator.hooks import HookContext
from replicax.estimator.run_config import RunConfig

_log = logging.getLogger("replicax.estimator")
_PREFIX = "model.ckpt"


def checkpoint_manager(model: BuiltModel, config: RunConfig, model_dir: str) -> CheckpointManager:
    """Returns what saves a model's variables in `model_dir`."""
    return CheckpointManager(
        model_dir,
        objects=dict(model.variables),
        max_to_keep=config.keep_checkpoint_max or None,
        keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
        checkpoint_name=_PREFIX,
    )


class Saving:
    """The checkpoints of a training, saved when a `CheckpointSaverHook` says so; calls the listeners."""

    def __init__(
        self,
        manager: CheckpointManager,
        savers: Sequence[CheckpointSaverHook],
        listeners: Sequence[object],
        context: HookContext,
        by_time: Together,
        check: Callable[[], None],
    ):
        self._manager, self._savers, self._context = manager, savers, context
        self._by_time, self._check = by_time, check
        self._listeners = [*(each for saver in savers for each in saver.listeners), *listeners]
        self._saved_step = context.step if context.step in manager.all_steps() else None

    def begin(self) -> None:
        tell(self._listeners, "begin")

    def next_step(self) -> int | None:
        """Returns the next step at which one will be due; None if that is not known."""
        steps = [step for saver in self._savers if (step := saver.next_step()) is not None]
        return min(steps, default=None)

    def is_due(self) -> bool:
        """Returns whether a saver says that it is time."""
        return any(saver.is_due(self._context.step) for saver in self._savers)

    def save_if_due(self) -> None:
        """Saves if a saver says that it is time; is called after each step."""
        due = [saver for saver in self._savers if saver.is_due(self._context.step)]
        if self._context.is_chief and any(saver.goes_by_time for saver in due):
            self._by_time.ask()  # The chief's clock counts, for all workers.
        if self._by_time.check() or any(not saver.goes_by_time for saver in due):
            self.save()

    def save(self) -> str | None:
        """Saves a checkpoint of the step that was done last, if there is none; calls the listeners."""
        step = self._context.step
        for saver in self._savers:
            saver.note_saved(step)
        if step == self._saved_step:
            return str(self._manager.path(step))
        self._check()  # raises before a bad checkpoint is written
        tell(self._listeners, "before_save", step)
        path = self._manager.save(step, force=True)
        self._saved_step = step
        _log.info("Saving checkpoint of step %d to %s.", step, self._manager.path(step))
        if self._listeners:  # They may read it.
            self._manager.wait_until_finished()
        if any(tell(self._listeners, "after_save", step)):
            self._context.request_stop()
        return path

    def end(self) -> None:
        """Saves the last step, if a step was done or nothing is saved yet, and waits until all is written."""
        if self._context.steps_done or self._saved_step is None:
            self.save()
        self._manager.wait_until_finished()
        tell(self._listeners, "end", self._context.step)
