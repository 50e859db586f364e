"""How a Keras variable takes a value of the host: in pieces, each to the devices that hold it."""

from __future__ import annotations

import functools

import numpy as np

from replicax.typing import PyTreeFunction
from replicax.contracts.variable_access import AssignableLike, array_of, shape_of
from replicax.weights.conversions import conversion
from replicax.weights.homes import home_of
from replicax.weights.pieces import ArrayTensor
from replicax.weights.reading import StoredTensor, being_checked, place


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
