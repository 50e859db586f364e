"""A Keras model on its way to another process, with all that it was compiled with, and its state on the way back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import jax
import numpy as np

from replicax.compat.keras import build_for, sublayers
from replicax.contracts.variable_access import name_of
from replicax.errors import ArgumentError, VariableError
from replicax.keras.custom_objects import CustomObjects
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras


class ModelState(NamedTuple):
    """The values of a model's variables, in Keras's order."""

    model: list[np.ndarray]  # weights, statistics, seeds
    optimizer: list[np.ndarray] | None  # None if it has no variables yet

    @classmethod
    def of(cls, model: keras.Model) -> ModelState:
        optimizer = getattr(model, "optimizer", None)
        held = None if optimizer is None or not optimizer.built else _values(optimizer.variables)
        return cls(_values(model.variables), held)

    def put_in(self, model: keras.Model) -> None:
        """Gives a model these values; its optimizer is built if the values are those of one that is."""
        optimizer = getattr(model, "optimizer", None)
        pairs = _pairs(f"the model {model.name!r}", model.variables, self.model)
        if self.optimizer is not None and optimizer is not None:
            if not optimizer.built:
                optimizer.build(model.trainable_variables)
            pairs += _pairs(f"the optimizer of {model.name!r}", optimizer.variables, self.optimizer)
        # Only here, so that nothing is assigned if the model has other variables.
        for variable, value in pairs:
            variable.assign(value)


class ModelParcel(NamedTuple):
    """A model as Keras's own configuration, with the user's classes and functions that it names, and its state."""

    name: str
    config: object  # what `keras.saving.serialize_keras_object` makes of the model: layers, shapes, compilation
    custom: CustomObjects
    state: ModelState
    # For each layer, itself first. The configuration of a user's class does not say where a part was frozen later.
    trainable: list[bool]
    batch: PyTree  # one row of a batch, if Keras has built losses and metrics for its like; it needs one for that

    @classmethod
    def of(cls, model: keras.Model, batch: PyTree = None) -> ModelParcel:
        """Returns a parcel with a copy of a model; `batch` is a row of one that it was built for, if it was."""
        import keras

        try:
            config, custom = CustomObjects.of(lambda: keras.saving.serialize_keras_object(model))
        except Exception as error:  # Whatever the classes of a model raise in their `get_config`.
            raise ArgumentError(
                f"The model {model.name!r} cannot be sent to the workers: {error} Its classes need a `get_config` that "
                "returns the arguments of `__init__`, and a `from_config`; or make the model in a function for "
                "strategy.remote."
            ) from error
        trainable = [layer.trainable for layer in sublayers(model, include_self=True)]
        return cls(model.name, config, custom, ModelState.of(model), trainable, batch)

    def opened(self) -> keras.Model:
        """Returns the model, made in the current scope."""
        with self.custom.known():
            try:
                model = self._made()
            except Exception as error:  # Whatever the classes of a model raise in their `from_config`.
                raise ArgumentError(
                    f"The model {self.name!r} cannot be made again on the workers: {str(error)[:1000]} Its classes "
                    "need a `get_config` that returns the arguments of `__init__`; or make the model in a function for "
                    "strategy.remote."
                ) from error
        if self.batch is not None:
            build_for(model, self.batch)
        if self.state.model:
            self.state.put_in(model)
        return model

    def _made(self) -> keras.Model:
        """Returns the model, compiled when its layers are frozen: its optimizer is built with what is trained."""
        import keras

        config = dict(cast("dict[str, object]", self.config))
        compiled = config.pop("compile_config", None)
        model = cast("keras.Model", keras.saving.deserialize_keras_object(config, safe_mode=False))
        self._freeze(model)
        if compiled is not None:
            model.compile_from_config(compiled)
        return model

    def _freeze(self, model: keras.Model) -> None:
        """Lets the layers be trained that are trained where the parcel was made."""
        layers = sublayers(model, include_self=True)
        if len(layers) != len(self.trainable) and not all(self.trainable):
            raise ArgumentError(
                f"The model {self.name!r} has frozen layers, and the workers cannot make it again with these layers: "
                f"{len(layers)} instead of {len(self.trainable)}. Build it before fit: call model.build, or give it an "
                "Input."
            )
        # A layer passes its flag on to those in it, which come after it.
        for layer, trainable in zip(layers, self.trainable, strict=False):
            if layer.trainable != trainable:
                layer.trainable = trainable


def like_a_row(batch: PyTree) -> PyTree:
    """Returns zeros in the structure of a batch, one row of each array."""
    return jax.tree.map(lambda array: np.zeros((1, *array.shape[1:]), array.dtype), batch)


def _values(variables: Iterable[keras.Variable]) -> list[np.ndarray]:
    return [np.asarray(variable.value) for variable in variables]


def _pairs(
    what: str, variables: Sequence[keras.Variable], values: Sequence[np.ndarray]
) -> list[tuple[keras.Variable, np.ndarray]]:
    """Returns variables with their values, checked."""
    ours = [(name_of(variable), tuple(variable.shape)) for variable in variables]
    if [shape for _, shape in ours] != [value.shape for value in values]:
        raise VariableError(
            f"{what} has {len(ours)} variables here ({ours!r:.300}) and {len(values)} on the workers (of shapes "
            f"{[value.shape for value in values]!r:.300}). Make all its variables before fit: give it an Input, or "
            "call model.build."
        )
    return list(zip(variables, values, strict=True))
