"""Where Keras is told how files are read and written under a strategy."""

from __future__ import annotations

from typing import Any

import replicax.compat.keras as keras_door
import replicax.compat.keras_files as keras_files
import replicax.context as context
from replicax.program.keras.state import owner_of
from replicax.runtime.once import once
from replicax.weights.assigning import in_pieces
from replicax.weights.whole_value import on_host
from replicax.weights.h5 import opened_member
from replicax.weights.keras_files import load_state_in_pieces, tensor_or_array


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
