"""Settings of Keras's layers and optimizers, such as `trainable`, `rate` and `clipvalue`.

A program is right for the settings that these had when it was traced. Keras's own code reads them, by properties and in
base classes, so they are not among the things that a step's code asks for by name. To compare all settings of a model
before each step would take longer than all else there. So Keras's attributes are counted when they get another plain
value, and compared when something was counted.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import replicax.compat.keras as keras_door
from replicax.program.captures import SETTINGS
from replicax.runtime.once import once
from replicax.typing import PyTreeFunction
from replicax.values.containers import is_same_setting

_KINDS = (*SETTINGS, types.FunctionType)  # functions: activations
_TRAINABLE = "_trainable"  # what the property `trainable` of layers and variables sets
# Notes of Keras about its own work, and settings that change no number.
_NOTES = frozenset(["built", "name", "supports_masking", "autocast"])


class _Count:
    """How many attributes of Keras's objects have got another plain value."""

    def __init__(self) -> None:
        self.changes = 0


_COUNT = _Count()


class KerasSettings:
    """The settings of some layers and optimizers, and of all that is in them."""

    def __init__(self, owners: Iterable[Any]):
        _count_changes()
        self._owners = list({id(each): each for each in owners}.values())
        self._counted, self._settings = _COUNT.changes, dict(self._found())

    @classmethod
    def of(cls, values: Iterable[object]) -> KerasSettings | None:
        """Returns those of the layers and optimizers among some values; None if there are none."""
        if "keras" not in sys.modules:
            return None
        import keras

        kinds = (keras.Layer, keras_door.optimizer_class())
        owners = [each for each in values if isinstance(each, kinds)]
        return cls(owners) if owners else None

    def changed(self) -> str | None:
        """Returns the name of a setting that has another value now than when this was made; None if none has."""
        counted = _COUNT.changes
        if counted == self._counted:
            return None
        now = dict(self._found())
        for key in {**self._settings, **now}:
            if key not in now or key not in self._settings or not is_same_setting(now[key], self._settings[key]):
                return f"{key[1]}.{key[2].removeprefix('_')}"
        self._counted = counted
        return None

    def _found(self) -> Iterator[tuple[tuple[int, str, str], object]]:
        """Yields each setting, by its owner, the name of that, and its own name."""
        import keras

        for owner in self._owners:
            is_layer = isinstance(owner, keras.Layer)
            parts = keras_door.sublayers(owner, include_self=True) if is_layer else _with_inner(owner)
            for each in parts:
                is_model = isinstance(each, keras.Model)  # It has much that `fit` sets, and its user's class the rest.
                for name, value in vars(each).items():
                    if _is_setting(name, value) and (name == _TRAINABLE or not is_model):
                        yield (id(each), each.name, name), value
            for variable in owner.variables:
                yield (id(variable), variable.path, _TRAINABLE), variable.trainable


def _with_inner(optimizer: Any) -> list[Any]:
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] if inner is None else [optimizer, inner]


def _is_setting(name: str, value: object) -> bool:
    return isinstance(value, _KINDS) and name not in _NOTES and (name == _TRAINABLE or not name.startswith("_"))


@once
def _count_changes() -> None:
    """Counts from now on which attributes of Keras's objects get another value."""
    import keras

    kinds: list[Any] = [keras.Layer, keras_door.optimizer_class()]
    for kind in kinds:
        kind.__setattr__ = _counting(kind.__setattr__)
    variables: Any = keras_door.variable_class()
    variables.trainable = variables.trainable.setter(_counting(variables.trainable.fset))


def _counting(original: PyTreeFunction) -> PyTreeFunction:
    @functools.wraps(original)
    def set_value(owner: Any, *given: Any) -> None:  # the name of an attribute and a value, or a value alone
        before = getattr(owner, "__dict__", {}).get(given[0] if len(given) > 1 else _TRAINABLE)
        original(owner, *given)
        if isinstance(before, _KINDS) and not is_same_setting(before, given[-1]):
            _COUNT.changes += 1

    return set_value
