"""Compiled Keras models as model functions."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import jax
import numpy as np

import replicax.context as context
from replicax.compat.keras import compile_arguments, takes_one_tensor
from replicax.contracts.variable_access import AssignableLike, VariableLike
from replicax.errors import EstimatorError
from replicax.estimator.mode_keys import ModeKeys
from replicax.estimator.spec import EstimatorSpec
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

_COPIED = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")
_NOT_USED = ("train_step", "test_step", "predict_step", "compile")


class KerasModelFn:
    """The model function of a compiled Keras model. The model itself stays as it is: each call trains a copy."""

    __name__ = "keras_model"

    def __init__(self, model: keras.Model):
        _check(model)
        try:
            self._class, self._config = type(model), model.get_config()
        except NotImplementedError as error:
            raise EstimatorError(
                f"The model {model.name!r} cannot be copied: {error} An estimator trains a copy of it: give its class "
                "`get_config` and `from_config`, or write a model function."
            ) from error
        arguments = compile_arguments(model)
        # Described now: while a step is traced, the learning rate of the optimizer is no number.
        self._compile = {name: _described(arguments[name]) for name in _COPIED if arguments.get(name) is not None}
        self._weights = [np.asarray(variable.value) for variable in model.weights] if model.built else None
        self._copies: weakref.WeakKeyDictionary[object, keras.Model] = weakref.WeakKeyDictionary()

    def __getstate__(self) -> dict[str, object]:
        """Pickles it without the copies: they belong to calls in this process."""
        return {name: value for name, value in vars(self).items() if name != "_copies"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._copies = weakref.WeakKeyDictionary()

    def __call__(self, features: PyTree, labels: PyTree, mode: str) -> EstimatorSpec:
        model = self._copy()
        features = _input_of(model, features)
        outputs = model(features, training=mode == ModeKeys.TRAIN)
        predictions = _named(model, outputs)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions=predictions)
        takes_training = "training" in inspect.signature(model.compute_loss).parameters
        training = {"training": mode == ModeKeys.TRAIN} if takes_training else {}
        loss = model.compute_loss(x=features, y=labels, y_pred=outputs, sample_weight=None, **training)
        model.compute_metrics(features, labels, outputs, None)
        optimizer = model.optimizer if mode == ModeKeys.TRAIN else None
        return EstimatorSpec(mode, predictions, loss, eval_metric_ops=_metrics(model), optimizer=optimizer)

    def _copy(self) -> keras.Model:
        """Returns the copy of this call of the estimator: the one that belongs to its variables."""
        variables = context.current().named_variables
        if variables not in self._copies:
            # Made here, in the scope of the strategy that it runs under.
            model = self._class.from_config(copy.deepcopy(self._config))
            model.compile(**{name: _made(value) for name, value in self._compile.items()})
            self._copies[variables] = model
        return self._copies[variables]

    def first_values(self, variables: object) -> list[tuple[AssignableLike, np.ndarray]]:
        """Returns the copy's variables with the values of the model's, if that has any."""
        return [] if self._weights is None else list(zip(self._copies[variables].weights, self._weights, strict=True))


class _PartOfMetric:
    """One of the metrics that Keras keeps together in one."""

    def __init__(self, whole: keras.metrics.Metric, key: str):
        self._whole, self._key = whole, key

    @property
    def variables(self) -> list[VariableLike]:
        return list(self._whole.variables)

    def result(self) -> jax.Array:
        result: jax.Array = self._whole.result()[self._key]
        return result


def _check(model: keras.Model) -> None:
    import keras

    if not isinstance(model, keras.Model):
        raise EstimatorError(f"`keras_model` is a compiled keras.Model, got {model!r:.100}.")
    if not model.compiled or model.optimizer is None:
        raise EstimatorError(
            f"The model {model.name!r} is not compiled. An estimator needs its optimizer and loss: call "
            "model.compile(optimizer=..., loss=...) first."
        )
    own = [name for name in _NOT_USED if getattr(type(model), name) is not getattr(keras.Model, name)]
    if own:
        raise EstimatorError(
            f"The model {model.name!r} defines {', '.join(own)} itself, which an estimator does not call. Write a "
            "model function that does the same: Estimator(model_fn=...)."
        )


@dataclasses.dataclass(frozen=True)
class _Description:
    """An optimizer or metric of which each copy of a model has one of its own."""

    kind: type[keras.optimizers.Optimizer] | type[keras.metrics.Metric]
    config: dict[str, object]


def _described(value: PyTree) -> PyTree:
    """Returns an argument of `compile` with descriptions in the places of its optimizer and metrics."""
    import keras

    if isinstance(value, (keras.optimizers.Optimizer, keras.metrics.Metric)):
        return _Description(type(value), value.get_config())
    return _mapped(_described, value)


def _made(value: PyTree) -> PyTree:
    """Returns an argument of `compile` with new optimizers and metrics in the places of the descriptions."""
    if isinstance(value, _Description):
        return value.kind.from_config(copy.deepcopy(value.config))
    return _mapped(_made, value)


def _mapped(fn: Callable[[PyTree], PyTree], value: PyTree) -> PyTree:
    if isinstance(value, Mapping):
        return {name: fn(each) for name, each in value.items()}
    return [fn(each) for each in value] if isinstance(value, (list, tuple)) else value


def _input_of(model: keras.Model, features: PyTree) -> PyTree:
    """Returns the features as a model of one input takes them."""
    import keras

    # Scripts for Keras 2 name the input of a `Sequential` model after its first layer: `{"dense_input": rows}`. Keras 3
    # gives it another name. One feature can only belong to the one input.
    one_input = isinstance(model, keras.Sequential) or takes_one_tensor(model)
    if isinstance(features, Mapping) and len(features) == 1 and one_input:
        return next(iter(features.values()))
    return features


def _named(model: keras.Model, outputs: PyTree) -> dict[str, PyTree]:
    """Returns a model's outputs by their names: those of the layers that they come from, or `output_1` and so on."""
    import keras

    if isinstance(outputs, Mapping):
        return dict(outputs)
    given = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    last = [model.layers[-1].name] if isinstance(model, keras.Sequential) else []
    names = list(getattr(model, "output_names", None) or last)
    if len(names) != len(given):
        names = [f"output_{i}" for i in range(1, len(given) + 1)]
    return dict(zip(names, given, strict=True))


def _metrics(model: keras.Model) -> dict[str, PyTree]:
    """Returns the metrics that a model was compiled with, and its own, by name; without that of the loss."""
    found: dict[str, PyTree] = {}
    for metric in model.metrics:
        result = metric.result()
        if isinstance(result, Mapping):
            found |= {key: _PartOfMetric(metric, key) for key in result}
        elif metric.name != "loss":
            found[metric.name] = metric
    return found
