"""The hooks by which Keras reads and writes files under a strategy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import replicax.compat.keras as keras_door
import replicax.compat.keras_files as keras_files
import replicax.context as context
from replicax.contracts.strategy import owner_of
from replicax.contracts.variable_access import AssignableLike, array_of, shape_of
from replicax.runtime.once import once
from replicax.typing import PyTreeFunction
from replicax.weights.conversions import conversion
from replicax.weights.h5 import opened_member
from replicax.weights.homes import home_of
from replicax.weights.keras_files import load_state_in_pieces, tensor_or_array
from replicax.weights.pieces import ArrayTensor
from replicax.weights.reading import StoredTensor, being_checked, place
from replicax.weights.whole_value import on_host


@once
def install_weight_hooks() -> None:
    """Wraps what reads and writes files of weights, once; what belongs to no strategy is read as before."""
    variable_class: Any = keras_door.variable_class()
    variable_class.assign = in_pieces(variable_class.assign)
    keras_files.wrap_load_state(load_state_in_pieces)
    keras_files.wrap_stores(tensor_or_array, on_host)
    keras_files.wrap_archives(_belongs_to_strategy, lambda: context.current().strategy is not None, opened_member)


def _belongs_to_strategy(model: Any) -> bool:
    return any(owner_of(variable) is not None for variable in model.variables)


# How a Keras variable takes a value of the host: in pieces, each to the devices that hold it.


def in_pieces(original: PyTreeFunction) -> PyTreeFunction:
    """Wraps `keras.Variable.assign`: Keras would put all of the value on the first device."""

    @functools.wraps(original)
    def assign(self: AssignableLike, value: object) -> object:
        checked = being_checked()
        if checked is not None:
            checked.note(self, value)
            return array_of(self)
        if isinstance(value, StoredTensor):
            if home_of(self) is None:
                return original(self, np.asarray(value))
            value.reading.assign(self, value)
            return array_of(self)
        converted = conversion()
        if converted is not None:
            converted.note(self)
        if not isinstance(value, np.ndarray):
            return original(self, value)
        home = home_of(self)
        # An array of one process may be another one in the next: only those of files are known to be the same.
        is_kept_whole = home is None or home.is_fully_replicated or not home.is_fully_addressable
        if home is None or (converted is None and is_kept_whole):
            return original(self, value)
        if value.shape != shape_of(self):
            return original(self, value)  # Keras says that they differ.
        place(self, ArrayTensor(value))
        return array_of(self)

    return assign
