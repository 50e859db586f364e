"""Objects of upper rooms that a lower room needs, such as the table of TensorFlow's names.

A room imports only lower ones. So the package itself, which may import all, registers here where the object is found;
it is loaded when a lower room first asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The class of the group of all processes that JAX connects.
FIXED_GROUP = "the fixed group"
#: The tables of other libraries' names.
NAME_TABLES = "tables of names"
#: The function that makes an error of XLA's the table of what was where, if memory was lacking.
OUT_OF_MEMORY = "tables of what was where"
#: The function that plans a training step of a Keras model.
PLANNING = "plans"
#: The module that reads TensorFlow's checkpoints.
TENSORFLOW_CHECKPOINTS = "TensorFlow's checkpoints"

_loaders: dict[str, Callable[[], object]] = {}


def register(name: str, load: Callable[[], object]) -> None:
    """Registers the function that loads the object called `name`."""
    _loaders[name] = load


def load(name: str) -> Any:
    """Returns the object called `name`."""
    return _loaders[name]()
