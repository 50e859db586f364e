"""Which strategy a Keras model belongs to, and where Keras is told about it.

Keras offers no way to take part in `Model.fit` from outside, so a few methods of its JAX trainer are wrapped, once,
when a strategy's scope is first opened with Keras loaded. For models without a strategy they do what they always did.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import numbers
from collections.abc import Callable, Iterator
from typing import Any

import replicax.context as context
from replicax.errors import ArgumentError, BatchError
from replicax.keras.trainer import StepFunctions
from replicax.program.keras_state import keras_is_loaded, keras_ownership

_LOOPS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
_STEPS = {"make_train_function": "train", "make_test_function": "test", "make_predict_function": "predict"}


@contextlib.contextmanager
def keras_entered(strategy: Any) -> Iterator[None]:
    """Makes Keras models and variables created in the `with` block belong to `strategy`; nothing without Keras."""
    if keras_is_loaded():
        install_trainer_hooks()
    with keras_ownership(strategy):
        yield


class _Membership:
    """What a model made in a strategy's scope remembers.

    Attributes:
        strategy: The strategy.
        steps: Number of steps made in loops so far.
    """

    def __init__(self, strategy: Any):
        self.strategy = strategy
        self.steps = 0

    def count_step(self) -> None:
        self.steps += 1


def strategy_of(model: Any) -> Any:
    """Returns the strategy in whose scope `model` was made, or None."""
    membership = getattr(model, "_replicax", None)
    return None if membership is None else membership.strategy


@functools.cache
def install_trainer_hooks() -> None:
    """Wraps the methods of Keras's trainer that a strategy takes part in."""
    import keras

    trainer = next(base for base in keras.Model.__mro__ if base.__name__ == "JAXTrainer")
    trainer.__init__ = _remembering_strategy(trainer.__init__)
    for name in _LOOPS:
        setattr(trainer, name, _in_global_view(getattr(trainer, name)))
    for name, kind in _STEPS.items():
        setattr(trainer, name, _with_strategy_steps(getattr(trainer, name), kind))


def _remembering_strategy(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if context.current().strategy is not None:
            self._replicax = _Membership(context.current().strategy)

    return __init__


def _in_global_view(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        if strategy_of(self) is None:
            return original(self, *args, **kwargs)
        _check_batch_size(signature.bind_partial(self, *args, **kwargs).arguments.get("batch_size"))
        before = self._replicax.steps
        try:
            with _without_keras_distribution():
                return original(self, *args, **kwargs)
        except (StopIteration, UnboundLocalError) as error:
            # What Keras's loops end with when their first `next` finds nothing.
            if self._replicax.steps == before:
                raise BatchError(f"{original.__name__}: the data yielded no batch at all.") from error
            raise

    return loop


def _with_strategy_steps(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    attribute = f"{kind}_function"

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return original(self, force)
        if getattr(self, attribute) is None or force:
            functions = StepFunctions(self, strategy, self._replicax.count_step)
            setattr(self, attribute, getattr(functions, kind)())
        return getattr(self, attribute)

    return make


def _check_batch_size(batch_size: Any) -> None:
    if batch_size is None:
        return
    if isinstance(batch_size, bool) or not isinstance(batch_size, numbers.Integral) or batch_size < 1:
        raise ArgumentError(f"`batch_size` is the number of rows in a global batch, at least 1, got {batch_size!r}.")


@contextlib.contextmanager
def _without_keras_distribution() -> Iterator[None]:
    """Inside a scope ours is active; Keras's loops would ask it for layouts of data."""
    import keras

    previous = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(previous)
