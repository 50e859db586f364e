"""The interface of all trackers: values go in in every worker, and the chief writes them."""

from __future__ import annotations

import abc
import functools
import importlib
import operator
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checks import is_int
from replicax.errors import ArgumentError
from replicax.tools.reporting import follows_others, is_chief

_Own = TypeVar("_Own", bound="Tracker")


class Tracker(abc.ABC):
    """The interface of all trackers.

    A tracker opens what it writes to at the first value, on the chief; when another worker becomes the chief (in an
    elastic job), that one goes on. As a context manager it is closed at the end of the block, also after an error.

    Subclasses write: `_open`, `_write`, `_write_hyperparameters`, `_close`.

    Example:
        >>> class Said(rx.trackers.Tracker):
        ...     def _open(self): print("open")
        ...     def _write(self, values, step): print(step, values)
        ...     def _write_hyperparameters(self, values): print(values)
        ...     def _close(self): print("close")
        >>> with Said() as tracker:
        ...     tracker.log({"loss": 0.5}, step=0)
        open
        0 {'loss': 0.5}
        close
    """

    def __init__(self) -> None:
        self._is_open = False
        #: Whether another worker may have written before, or this one has.
        self._goes_on = follows_others()

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Logs values of one step.

        The chief waits until arrays among them are computed.

        Args:
            values: Numbers, or arrays of one number, by name.
            step: The step that they belong to, from 0.

        Raises:
            ArgumentError: A value is no number, a name is no text, or `step` is no step.
        """
        numbers, at = _checked(values), _checked_step(step)
        if self._writes():
            self._write({name: _number(value) for name, value in numbers.items()}, at)

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Logs what the training was started with, such as the learning rate and the batch size.

        Args:
            values: Texts, numbers and the like, by name; nested mappings get names such as `optimizer/rate`.

        Raises:
            ArgumentError: `values` is no mapping from texts.
        """
        flat = _flattened(values)
        if self._writes():
            self._write_hyperparameters(flat)

    def callback(self, every: str | int = "epoch") -> Any:
        """Returns a Keras callback that logs what `fit` and `evaluate` tell.

        The values of an epoch are logged under its number; with `every` another series under the number of the training
        step, named `batch_<name>`.

        Args:
            every: `"epoch"`, `"batch"` or a number of training steps.

        Raises:
            ArgumentError: `every` is none of these.
        """
        steps = {"epoch": 0, "batch": 1}.get(every, every) if isinstance(every, str) else every
        if not is_int(steps) or (steps < 1 and every != "epoch"):
            raise ArgumentError(f'`every` must be "epoch", "batch" or a number of steps, got {every!r}.')
        return _callback_class()(self, operator.index(steps))

    def close(self) -> None:
        """Writes all that was logged, and closes files and connections. Logging opens them again, to go on."""
        if self._is_open:
            self._is_open = False
            self._goes_on = True
            self._close()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _writes(self) -> bool:
        """Returns whether this process writes now; opens what it writes to."""
        if not is_chief():
            self._goes_on = True
            return False
        if not self._is_open:
            self._goes_on = self._goes_on or follows_others()
            self._open()
            self._is_open = True
        return True

    @abc.abstractmethod
    def _open(self) -> None:
        """Opens what is written to."""

    @abc.abstractmethod
    def _write(self, values: Mapping[str, float], step: int) -> None:
        """Writes the values of a step."""

    @abc.abstractmethod
    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Writes hyperparameters."""

    @abc.abstractmethod
    def _close(self) -> None:
        """Closes it."""


def needed(package: str, what: str, install: str) -> Any:
    """Imports and returns a package that a tracker writes with."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ArgumentError(
            f"{what} writes with the package {package}, which cannot be imported ({error}). Install it: "
            f"pip install {install}."
        ) from error


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ArgumentError(f"A tracker logs a mapping from names to numbers, got {values!r:.100}.")
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"The name of a value must be a text, got {name!r}.")
        if isinstance(value, jax.core.Tracer):
            raise ArgumentError(
                f"{name!r} is being traced and has no value yet: return it from the step, and log that."
            )
        dtype = getattr(value, "dtype", None) or np.asarray(value).dtype
        is_number = any(jnp.issubdtype(dtype, kind) for kind in (np.integer, np.floating, np.bool_))
        if not is_number or np.size(value) != 1:
            raise ArgumentError(
                f"A tracker logs numbers; {name!r} is {value!r:.100}. Reduce it first: strategy.reduce for values of "
                "replicas, np.mean for arrays."
            )
    return dict(values)


def _checked_step(step: object) -> int:
    try:
        number = operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0 or isinstance(step, bool):
        raise ArgumentError(f"`step` must be a number of at least 0, got {step!r:.100}.")
    return number


def _number(value: Any) -> float:
    return float(np.asarray(value).reshape(()))


def _flattened(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    if not isinstance(values, Mapping) or not all(isinstance(name, str) and name for name in values):
        raise ArgumentError(f"Hyperparameters are a mapping from names to values, got {values!r:.100}.")
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flattened(value, f"{before}{name}/") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return flat


@functools.cache
def _callback_class() -> Any:
    import keras

    class TrackerCallback(keras.callbacks.Callback):
        """Logs what Keras tells; it is called on the chief only."""

        def __init__(self, tracker: Tracker, every: int):
            super().__init__()
            self.tracker, self._every = tracker, every
            self._steps = self._steps_before_epoch = 0

        @property
        def append(self) -> bool:
            """Whether another worker has written before this one."""
            return self.tracker._goes_on

        @append.setter
        def append(self, goes_on: bool) -> None:
            self.tracker._goes_on = goes_on

        def continue_from(self, steps: int) -> None:
            """Counts on from `steps`: another worker has written about those before."""
            self._steps = steps

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._steps_before_epoch = self._steps

        def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
            before, self._steps = self._steps, self._steps_before_epoch + batch + 1
            if self._every and self._steps // self._every != before // self._every:
                self.tracker.log({f"batch_{name}": value for name, value in (logs or {}).items()}, self._steps)

        def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            self.tracker.log(logs or {}, epoch)

    return TrackerCallback
