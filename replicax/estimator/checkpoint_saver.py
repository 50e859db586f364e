"""When a training saves: `CheckpointSaverHook`, and its listeners."""

from __future__ import annotations

from collections.abc import Iterable

from replicax.errors import EstimatorError
from replicax.estimator.basic_hooks import EveryN
from replicax.estimator.hooks import Hook, HookContext

LISTENER_METHODS = ("begin", "before_save", "after_save", "end")


class CheckpointSaverListener:
    """Notes each checkpoint of a training; a subclass overrides what it needs.

    `after_save` may return True to end the training.

    Example:
        >>> class Says(rx.estimator.CheckpointSaverListener):
        ...     def after_save(self, context, step):
        ...         print("saved at", step)
        >>> hook = rx.estimator.CheckpointSaverHook(save_steps=100, listeners=[Says()])
    """

    def begin(self) -> None:
        """The training begins."""

    def before_save(self, global_step: int) -> None:
        """A checkpoint is about to be saved."""

    def after_save(self, global_step: int) -> bool | None:
        """A checkpoint is complete; returns whether the training is to end."""

    def end(self, global_step: int) -> None:
        """The training ends; the last checkpoint is complete."""


class CheckpointSaverHook(Hook):
    """Says when a training saves a checkpoint. The estimator adds one, by its `RunConfig`, unless it is given one.

    The training saves when the hooks have been called after a step, and once more at the end. With several workers the
    chief's clock counts for `save_secs`.

    Args:
        save_steps: After how many steps each.
        save_secs: After how many seconds each, in the place of steps. None for both: at the end only.
        listeners: Objects with any of the methods of `CheckpointSaverListener`.

    Raises:
        EstimatorError: Both are given, or a listener has none of the methods.

    Example:
        >>> hook = rx.estimator.CheckpointSaverHook(save_steps=100)
    """

    def __init__(
        self, save_steps: int | None = None, save_secs: float | None = None, listeners: Iterable[object] | None = None
    ):
        self._timer = EveryN(save_steps, save_secs)
        self._steps = save_steps
        self.goes_by_time = save_secs is not None
        self.listeners = tuple(checked_listeners(listeners))

    def begin(self, context: HookContext) -> None:
        self._timer.restart(context.step)

    def is_due(self, step: int) -> bool:
        """Returns whether it is time to save."""
        return self._timer.is_over(step)

    def next_step(self) -> int | None:
        """Returns the step at which it will be time; None if that is not known."""
        return None if self._steps is None else (self._timer.last_step or 0) + self._steps

    def note_saved(self, step: int) -> None:
        """Begins to wait for the next time."""
        self._timer.restart(step)


def checked_listeners(listeners: Iterable[object] | None) -> list[object]:
    """Returns saving listeners as a list."""
    if listeners is None:
        return []
    if not isinstance(listeners, Iterable) or isinstance(listeners, str):
        raise EstimatorError(f"`saving_listeners` is a list of CheckpointSaverListeners, got {listeners!r:.100}.")
    found = list(listeners)
    for each in found:
        if isinstance(each, type) or not any(callable(getattr(each, name, None)) for name in LISTENER_METHODS):
            raise EstimatorError(
                f"A saving listener has one of the methods {', '.join(LISTENER_METHODS)}; got {each!r:.100}."
            )
    return found


def tell(listeners: Iterable[object], method: str, *args: int) -> list[object]:
    """Calls a method of all listeners that have it; returns what they return."""
    functions = [getattr(listener, method, None) for listener in listeners]
    return [function(*args) for function in functions if function is not None]
