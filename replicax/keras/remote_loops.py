"""`Model.fit` and the like of a client: model, data and callbacks go to the workers, and come back trained."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import jax
import numpy as np

from replicax.compat import keras as keras_door
from replicax.errors import ArgumentError, ContextError
from replicax.job.processes.call import why_not_sendable
from replicax.keras.chief_writes import listed
from replicax.keras.model_pickling import ModelState, like_a_row
from replicax.keras.models import batch_of, note_batch
from replicax.keras.random_state import RandomState
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

_log = logging.getLogger(__name__)
_OF_THE_LOOP = ("_model", "params")  # what Keras gives a callback for the time of a loop


class Client(Protocol):
    """A strategy whose workers are elsewhere."""

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """Makes it the current strategy."""

    def remote(self, fn: Callable[..., object], *args: object, **kwargs: object) -> object:
        """Runs a function on every worker and returns the chief's result."""


class LoopResult(NamedTuple):
    """The result of a loop on the chief."""

    returned: object  # for `fit` the history's values
    epochs: list[int] | None  # of the history; None for other loops
    params: Mapping[str, object] | None  # what Keras told the callbacks; None for other loops
    state: ModelState
    random: RandomState
    callbacks: list[dict[str, object]]  # the attributes of each, as the loop has left them
    stop_training: bool
    batch: PyTree  # one row of zeros like a batch


class RemoteLoops:
    """Runs the loops of a model on the workers of a client; the methods take what those of `keras.Model` take."""

    def __init__(self, model: keras.Model, strategy: Client):
        self._model, self._strategy = model, strategy

    @property
    def steps(self) -> object:
        """There are none here."""
        raise ContextError(
            "Steps of a model whose strategy is a client run on its workers. Call fit, evaluate or predict, or put the "
            "loop into a function: strategy.remote(fn)."
        )

    def __getattr__(self, name: str) -> Callable[..., object]:
        """Returns `fit`, `evaluate`, `predict` and the like."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._loop(name, args, kwargs)

    def _loop(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        import keras

        signature = inspect.signature(getattr(keras.Model, name))
        given = signature.bind(self._model, *args, **kwargs)
        if not _is_built(self._model):
            self._build(given.arguments)
        elif batch_of(self._model) is None and given.arguments.get("y") is not None and _has_no_graph(self._model):
            self._build(given.arguments)  # The workers make its variables by calling it.
        callbacks = listed(given.arguments.get("callbacks"))
        attributes = [_without_model(callback) for callback in callbacks]
        try:
            # Each worker makes the model anew, in the scope of its own strategy.
            result = self._strategy.remote(_loop_on_worker, self._model, name, _arguments(given), RandomState.here())
        finally:
            for callback, taken in zip(callbacks, attributes, strict=True):
                vars(callback).update(taken)
        return self._taken_back(cast(LoopResult, result), callbacks)

    def _build(self, arguments: Mapping[str, PyTree]) -> None:
        """Makes the variables of a model that has none yet: their first values come from seeds that the layers have."""
        import keras

        x, y, random = arguments.get("x"), arguments.get("y"), RandomState.here()
        if isinstance(x, keras.utils.PyDataset):
            batch = x[0]
        elif x is not None and y is not None and keras_door.are_arrays(x):
            rows, labels = (jax.tree.map(lambda array: array[:1], data) for data in (x, y))
            batch = keras_door.as_one_batch(rows, labels, None, None, 1)
        else:
            raise ArgumentError(
                f"The model {self._model.name!r} has no variables yet, and only the workers know what its data look "
                "like. Make them first: begin the model with keras.Input, or call model.build."
            )
        with self._strategy.scope():
            keras_door.build_for(self._model, batch)
        if _has_no_graph(self._model):  # Others are made from their configuration; Keras builds the rest there in fit.
            note_batch(self._model, like_a_row(batch))
        random.set()

    def _taken_back(self, result: LoopResult, callbacks: list[keras.callbacks.Callback]) -> object:
        import keras

        note_batch(self._model, result.batch)
        result.state.put_in(self._model)
        result.random.set()
        for callback, attributes in zip(callbacks, result.callbacks, strict=True):
            vars(callback).update(attributes)
        self._model.stop_training = result.stop_training
        if result.epochs is None:
            return result.returned
        history = keras.callbacks.History()
        history.set_model(self._model)
        history.set_params(dict(result.params or {}))
        history.history, history.epoch = cast("dict[str, list[float]]", result.returned), result.epochs
        self._model.history = history
        return history


def _loop_on_worker(model: keras.Model, name: str, arguments: dict[str, object], random: RandomState) -> LoopResult:
    """Runs a loop on a worker and returns all that it has changed."""
    import keras

    callbacks = listed(arguments.get("callbacks"))
    random.set()  # The making of the model has drawn from the generators.
    returned = getattr(model, name)(**arguments)
    epochs = params = None
    if isinstance(returned, keras.callbacks.History):
        epochs, params, returned = list(returned.epoch), dict(returned.params or {}), dict(returned.history)
    elif not isinstance(returned, (float, int, dict, list)):
        returned = jax.tree.map(np.asarray, returned)
    return LoopResult(
        returned,
        epochs,
        params,
        ModelState.of(model),
        RandomState.here(),
        [_sendable(callback) for callback in callbacks],
        bool(getattr(model, "stop_training", False)),
        batch_of(model),
    )


def _is_built(model: keras.Model) -> bool:
    return all(layer.built for layer in keras_door.sublayers(model, include_self=True))


def _has_no_graph(model: keras.Model) -> bool:
    """Returns whether only calling a model shows which layers it has for which shapes."""
    import keras

    return not isinstance(model, keras.Sequential) and getattr(model, "outputs", None) is None


def _arguments(given: inspect.BoundArguments) -> dict[str, object]:
    """Returns the arguments of a call by their names, without the model."""
    names = dict(given.arguments)
    names.pop("self")
    return {**names, **names.pop("kwargs", {})}


def _without_model(callback: keras.callbacks.Callback) -> dict[str, object]:
    """Takes from a callback what an earlier loop has left in it, and returns that."""
    return {name: vars(callback).pop(name) for name in _OF_THE_LOOP if name in vars(callback)}


def _sendable(callback: keras.callbacks.Callback) -> dict[str, object]:
    """Returns the attributes of a callback that can be sent to the client."""
    found = {}
    for name, value in vars(callback).items():
        if name in _OF_THE_LOOP:
            continue
        why = why_not_sendable(value)
        if why is None:
            found[name] = value
        else:  # An open file, say.
            _log.warning("%s.%s does not come back to the client: %s", type(callback).__name__, name, why)
    return found
