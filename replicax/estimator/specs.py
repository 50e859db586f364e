"""`TrainSpec` and `EvalSpec`: on what `train_and_evaluate` trains, and on what it evaluates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from replicax.checks import checked_int, checked_seconds
from replicax.errors import ArgumentError
from replicax.estimator.exporters import Exporter

InputFn = Callable[..., object]
HOOK_METHODS = ("begin", "before_step", "after_step", "end")
_CALLBACK_METHODS = ("set_model", "on_train_batch_end")
_LISTENER_METHODS = ("begin", "before_save", "after_save", "end")


@dataclasses.dataclass(frozen=True)
class TrainSpec:
    """The data that `train_and_evaluate` trains on, and for how long.

    Attributes:
        input_fn: Returns the data: a dataset of `(features, labels)`, or one such pair of arrays. It may take the
            parameters `mode`, `params` and `config`.
        max_steps: The global step at which the training ends; None to train as long as there is data.
        hooks: Hooks (`begin`, `before_step`, `after_step`, `end`) and Keras callbacks, in all processes that train.
        saving_listeners: Objects with any of `begin`, `before_save`, `after_save` and `end`, called in the chief when
            it saves a checkpoint.

    Raises:
        ArgumentError: One of them has the wrong type or value.

    Example:
        >>> import numpy as np
        >>> rx.estimator.TrainSpec(lambda: [(np.ones((4, 2)), np.ones(4))], max_steps=1000).max_steps
        1000
    """

    input_fn: InputFn
    max_steps: int | None = None
    hooks: Iterable[object] | None = None
    saving_listeners: Iterable[object] | None = None

    def __post_init__(self) -> None:
        _check_input_fn(self.input_fn)
        if self.max_steps is not None:
            checked_int("max_steps", self.max_steps, least=1, note=", or None")
        object.__setattr__(self, "hooks", checked_hooks(self.hooks))
        listeners = _all_with("saving_listeners", self.saving_listeners, _LISTENER_METHODS, "a saving listener")
        object.__setattr__(self, "saving_listeners", listeners)

    @property
    def all_hooks(self) -> list[object]:
        """The hooks as a list."""
        return list(self.hooks or ())

    @property
    def all_listeners(self) -> list[object]:
        """The saving listeners as a list."""
        return list(self.saving_listeners or ())


@dataclasses.dataclass(frozen=True)
class EvalSpec:
    """The data that `train_and_evaluate` evaluates on, how often, and the exports.

    Attributes:
        input_fn: Returns the data, as in `TrainSpec`.
        steps: Number of batches of an evaluation; None for all.
        name: A name for the evaluation, if there are several on different data: their logs stand in separate folders.
        hooks: Hooks and Keras callbacks of the evaluations.
        exporters: An `Exporter` or several, each with a name of its own; they are called after each evaluation.
        start_delay_secs: How long an evaluator waits before it looks for checkpoints, in seconds.
        throttle_secs: How many seconds pass at least from the start of an evaluation to that of the next. Of the
            checkpoints that come meanwhile the newest is taken. With 0 each checkpoint is evaluated, in order.
        idle_timeout_secs: After how many seconds without a new checkpoint an evaluator ends with an error; None for
            never. It should be more than the time between two checkpoints.

    Raises:
        ArgumentError: One of them has the wrong type or value.

    Example:
        >>> import numpy as np
        >>> spec = rx.estimator.EvalSpec(lambda: [(np.ones((4, 2)), np.ones(4))], steps=10)
        >>> spec.steps
        10
    """

    input_fn: InputFn
    steps: int | None = 100
    name: str | None = None
    hooks: Iterable[object] | None = None
    exporters: Exporter | Iterable[Exporter] | None = None
    start_delay_secs: float = 120
    throttle_secs: float = 600
    idle_timeout_secs: float | None = dataclasses.field(default=3600, kw_only=True)

    def __post_init__(self) -> None:
        _check_input_fn(self.input_fn)
        if self.steps is not None:
            checked_int("steps", self.steps, least=1, note=", or None for all the data")
        if self.name is not None and (not isinstance(self.name, str) or not self.name or "/" in self.name):
            raise ArgumentError(f"`name` must be a string that can name a folder, or None, got {self.name!r:.100}.")
        object.__setattr__(self, "hooks", checked_hooks(self.hooks))
        object.__setattr__(self, "exporters", checked_exporters(self.exporters))
        checked_seconds("start_delay_secs", self.start_delay_secs, zero=True)
        checked_seconds("throttle_secs", self.throttle_secs, zero=True)
        if self.idle_timeout_secs is not None:
            checked_seconds("idle_timeout_secs", self.idle_timeout_secs, note=", or None for no limit")

    @property
    def all_hooks(self) -> list[object]:
        """The hooks as a list."""
        return list(self.hooks or ())

    @property
    def all_exporters(self) -> tuple[Exporter, ...]:
        """The exporters, also if one alone was given."""
        return checked_exporters(self.exporters)


def checked_hooks(hooks: object) -> tuple[object, ...]:
    """Returns hooks and Keras callbacks as a tuple."""
    return _all_with("hooks", hooks, (*HOOK_METHODS, *_CALLBACK_METHODS), "a hook or a Keras callback")


def checked_exporters(exporters: object) -> tuple[Exporter, ...]:
    """Returns an exporter, or several with different names, as a tuple."""
    given = (exporters,) if isinstance(exporters, Exporter) else _as_tuple("exporters", exporters, "an Exporter")
    names: list[str] = []
    for exporter in given:
        if not isinstance(exporter, Exporter):
            raise ArgumentError(
                f"`exporters` must be an Exporter, an iterable of them, or None, got {exporter!r:.100}."
            )
        if not isinstance(exporter.name, str) or not exporter.name:
            raise ArgumentError(
                f"An Exporter must have a name, a string that is not empty, got {exporter.name!r:.100}."
            )
        names.append(exporter.name)
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"`exporters` must have unique names, but {name!r} comes twice: all are {names}.")
    return tuple(each for each in given if isinstance(each, Exporter))


def _check_input_fn(input_fn: object) -> None:
    if not callable(input_fn):
        raise ArgumentError(f"`input_fn` must be a function that returns the data, got {input_fn!r:.100}.")


def _as_tuple(name: str, given: object, what: str) -> tuple[object, ...]:
    if given is None:
        return ()
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise ArgumentError(f"`{name}` must be {what}, an iterable of them, or None, got {given!r:.100}.")
    return tuple(given)


def _all_with(name: str, given: object, methods: tuple[str, ...], what: str) -> tuple[object, ...]:
    for each in (all_given := _as_tuple(name, given, what)):
        if isinstance(each, type) or not any(callable(getattr(each, method, None)) for method in methods):
            raise ArgumentError(
                f"`{name}` holds {each!r:.100}, which is not {what}: it has none of {', '.join(methods)}."
            )
    return all_given
