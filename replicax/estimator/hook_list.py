"""Several hooks as one, Keras callbacks among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeGuard

from replicax.errors import EstimatorError
from replicax.estimator.hooks import HOOK_METHODS, HookContext
from replicax.estimator.mode_keys import ModeKeys


class Hooks:
    """Several hooks and Keras callbacks as one; a hook may lack methods."""

    def __init__(self, hooks: Iterable[object]):
        self._hooks = [as_hook(each) for each in hooks]

    def call(self, method: str, context: HookContext) -> None:
        for hook in self._hooks:
            function = getattr(hook, method, None)
            if function is not None:
                function(context)


def as_hook(given: object) -> object:
    """Returns a hook, or a Keras callback as a hook."""
    if is_callback(given):
        return CallbackHook(given)
    if isinstance(given, type):
        raise EstimatorError(f"A hook is an object, got the class {given.__name__}: write {given.__name__}().")
    if not any(callable(getattr(given, method, None)) for method in HOOK_METHODS):
        raise EstimatorError(
            f"A hook has one of the methods {', '.join(HOOK_METHODS)}, or is a Keras callback; got {given!r:.100}."
        )
    return given


# Keras callbacks as hooks.


_KINDS = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "test", ModeKeys.PREDICT: "predict"}


class Callback(Protocol):
    """The part of `keras.callbacks.Callback` that is called."""

    def set_model(self, model: object) -> None:
        """Sets the callback's model."""

    def set_params(self, params: dict[str, object]) -> None:
        """Sets the parameters of the loop."""


class ModelOfLoop:
    """The `model` of a Keras callback, which may set `stop_training`."""

    def __init__(self, context: HookContext):
        self.stop_training = False
        self.context = context


def is_callback(given: object) -> TypeGuard[Callback]:
    """Returns whether an object is a Keras callback."""
    return not isinstance(given, type) and callable(getattr(given, "set_model", None)) and hasattr(given, "set_params")


class CallbackHook:
    """Calls a Keras callback. A loop is one epoch: the first; batches are its steps, from 0."""

    def __init__(self, callback: Callback):
        self._callback = callback

    def begin(self, context: HookContext) -> None:
        self._kind = _KINDS[context.mode]
        self._model = ModelOfLoop(context)
        self._callback.set_params({"epochs": 1, "steps": None, "verbose": 0})
        self._callback.set_model(self._model)
        self._call(f"on_{self._kind}_begin")
        if context.mode == ModeKeys.TRAIN:
            self._call("on_epoch_begin", 0)

    def before_step(self, context: HookContext) -> None:
        self._call(f"on_{self._kind}_batch_begin", context.steps_done)

    def after_step(self, context: HookContext) -> None:
        self._call(f"on_{self._kind}_batch_end", context.steps_done - 1, logs=context.values())
        if self._model.stop_training:
            context.request_stop()

    def end(self, context: HookContext) -> None:
        if context.mode == ModeKeys.TRAIN:
            self._call("on_epoch_end", 0, logs=context.values())
        self._call(f"on_{self._kind}_end")

    def _call(self, method: str, *args: object, **kwargs: object) -> None:
        function: Callable[..., None] | None = getattr(self._callback, method, None)
        if function is not None:
            function(*args, **kwargs)
