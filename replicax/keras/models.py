"""Which strategy a Keras model belongs to, and where Keras is told about it.

Keras offers no way to take part in `Model.fit` from outside, so a few methods of its JAX trainer are wrapped, once,
when a strategy's scope is first opened with Keras loaded. For models without a strategy they do what they always did.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import replicax.context as context
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


def strategy_of(model: Any) -> Any:
    """Returns the strategy in whose scope `model` was made, or None."""
    return getattr(model, "_replicax_strategy", None)


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
            self._replicax_strategy = context.current().strategy

    return __init__


def _in_global_view(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        if strategy_of(self) is None:
            return original(self, *args, **kwargs)
        with _without_keras_distribution():
            return original(self, *args, **kwargs)

    return loop


def _with_strategy_steps(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    attribute = f"{kind}_function"

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        strategy = strategy_of(self)
        if strategy is None:
            return original(self, force)
        if getattr(self, attribute) is None or force:
            setattr(self, attribute, getattr(StepFunctions(self, strategy), kind)())
        return getattr(self, attribute)

    return make


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
