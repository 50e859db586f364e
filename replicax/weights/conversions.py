"""KerasHub's conversion of other libraries' files: tensors are mapped, not read, and what is left out is told.

The converters call `assign` with what NumPy makes of a tensor: a transposed or reshaped view, of which only the parts
that this process's devices hold are then read. All processes convert the same files.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

import replicax.compat.keras_hub as keras_hub_door
import replicax.context as context
from replicax.contracts.variable_access import VariableLike, is_trained
from replicax.errors import WeightsError
from replicax.runtime.once import once
from replicax.typing import PyTreeFunction
from replicax.weights.matching import Entry, complaints
from replicax.weights.safetensors_format import read_header

if TYPE_CHECKING:
    import keras

_SHOWN = 10


@dataclass
class Conversion:
    """The conversion of one preset."""

    stored: dict[str, Entry] = field(default_factory=dict)  # the tensors of the files that were opened, by name
    used: set[str] = field(default_factory=set)  # the names of those that the converter has asked for
    assigned: set[int] = field(default_factory=set)  # the variables that it has assigned, by `id`

    def note(self, variable: VariableLike) -> None:
        """Notes that a variable has got a value."""
        self.assigned.add(id(variable))

    def check(self, preset: str, backbone: keras.Model) -> None:
        """Checks that each trainable variable has got a value; warns of tensors that no variable has taken."""
        left = {name: entry for name, entry in self.stored.items() if name not in self.used}
        without = [v for v in backbone.weights if is_trained(v) and id(v) not in self.assigned]
        if without and self.used:
            raise WeightsError(complaints(preset, [], without, left, backbone.weights, self.stored))
        if left:  # A file often has more than the backbone: the head of a task, or constants.
            shown = ", ".join(list(left)[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" * (len(left) > _SHOWN))
            warnings.warn(f"{preset} has tensors that the model does not take: {shown}.", stacklevel=4)


def conversion() -> Conversion | None:
    """Returns the conversion that this thread makes in the scope of a strategy; None outside of one."""
    return cast("Conversion | None", context.current().conversion)


@once
def install_conversion_hooks() -> None:
    """Wraps the loaders of KerasHub, once."""
    keras_hub_door.wrap_loaders(_converted, _opened)


def _converted(original: PyTreeFunction) -> PyTreeFunction:
    @functools.wraps(original)
    def load(self: object, cls: type, load_weights: bool, *args: object, **kwargs: object) -> keras.Model:
        if context.current().strategy is None or not load_weights or conversion() is not None:
            return original(self, cls, load_weights, *args, **kwargs)
        own = Conversion()
        with context.entered(conversion=own):
            model: keras.Model = original(self, cls, load_weights, *args, **kwargs)
        # The head of a task may be a new one.
        own.check(str(getattr(self, "preset", "The preset")), getattr(model, "backbone", model))
        return model

    return load


def _opened(path: str) -> _MappedFile | None:
    own = conversion()
    return None if own is None else _MappedFile(path, own)


class _MappedFile(contextlib.AbstractContextManager["_MappedFile"]):
    """A file of safetensors whose tensors are mapped into memory; its methods are those of `safe_open`."""

    def __init__(self, path: str, own: Conversion):
        self._regions, self._own = read_header(Path(path)), own
        own.stored |= {name: Entry(name, name, region.shape) for name, region in self._regions.items()}

    def __exit__(self, *exception: object) -> None:
        self._regions = {}

    def keys(self) -> list[str]:
        """Returns the names of the tensors."""
        return list(self._regions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._regions)

    def get_tensor(self, name: str) -> np.ndarray:
        """Returns a tensor, of which nothing has been read."""
        region = self._regions[name]
        self._own.used.add(name)
        if not region.nbytes:
            return np.zeros(region.shape, region.dtype)
        return np.memmap(region.path, region.dtype, "r", region.offset, region.shape or (1,)).reshape(region.shape)
