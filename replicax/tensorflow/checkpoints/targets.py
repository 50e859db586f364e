"""The variables and values that a checkpoint of TensorFlow's is to be restored to, and the way to them by name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replicax.checkpoint.contents import is_value, parts_of
from replicax.checkpoint.variable_names import is_keras_object, is_variable, keras_objects
from replicax.compat.keras import sublayers
from replicax.contracts.variable_access import AssignableLike, dtype_of, shape_of
from replicax.typing import Leaf, PyTree

if TYPE_CHECKING:
    import keras

_LAYER_WITH_WEIGHTS = re.compile(r"layer_with_weights-(\d+)")
_SEED = "seed_generator_state"  # Keras 3 has the state of its random generators in variables, TensorFlow has not.


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A variable, array or number that gets a value."""

    name: str  # for messages and mappings: the object's name and the variable's path, "model/dense/kernel"
    path: str  # its name in a checkpoint of replicax
    shape: tuple[int, ...]
    dtype: np.dtype
    variable: AssignableLike | None = None  # None for an array or number
    old: Leaf = None  # the array or number

    @property
    def is_seed(self) -> bool:
        """Whether it is the state of a random generator of Keras's."""
        return self.name.rpartition("/")[2] == _SEED


class Targets:
    """All targets in some objects."""

    def __init__(self, objects: Mapping[str, PyTree]):
        self.objects = objects
        self.all: dict[str, Target] = {}  # by name
        self._of: dict[int, Target] = {}
        self._paths: dict[str, Target] = {}
        parts, owners = parts_of(objects, allow_unbuilt=True), keras_objects(objects)
        for path, variable in parts.variables.items():
            prefix, _, _ = path.rpartition("/")
            own = getattr(variable, "path", None) if prefix in owners else None
            name = "/".join(filter(None, (prefix, own))) if own else path
            shape, dtype = shape_of(variable), np.dtype(dtype_of(variable))
            self._of[id(variable)] = self._add(Target(name, path, shape, dtype, variable))
        values = {**parts.arrays, **{name: state for name, state in parts.states.items() if is_value(state)}}
        for path, value in values.items():
            if not isinstance(value, (str, bytes)):
                self._add(Target(path, path, np.asarray(value).shape, np.asarray(value).dtype, old=value))

    def of(self, variable: object) -> Target | None:
        return self._of.get(id(variable))

    def named(self, name: str) -> Target | None:
        """Returns the target of a name, or of a path in a checkpoint of replicax."""
        return self.all.get(name) or self._paths.get(name)

    def without_weights(self) -> Iterator[Target]:
        """Yields the targets in models that are no weights: the states of metrics and of random generators."""
        import keras

        for value in keras_objects(self.objects).values():
            if isinstance(value, keras.Layer):
                weights = {id(weight) for weight in value.weights}
                others = (self.of(variable) for variable in value.variables if id(variable) not in weights)
                yield from (target for target in others if target is not None)

    def _add(self, target: Target) -> Target:
        if target.name in self.all:  # Keras does not ensure that names differ.
            target = dataclasses.replace(target, name=target.path)
        self.all[target.name] = self._paths[target.path] = target
        return target


def child_of(value: PyTree, name: str) -> PyTree:
    """Returns what TensorFlow or Keras call `name` in an object: an attribute, item, or layer by its index; or None."""
    if isinstance(value, Mapping):
        of_key = next((child for key, child in value.items() if str(key) == name), None)
        return child_of(list(value.values()), name) if of_key is None and not name.isdecimal() else of_key
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if name.isdecimal():
            return value[int(name)] if int(name) < len(value) else None
        return dict(zip(names_in_list(value), value, strict=True)).get(name)
    if is_keras_object(value):
        match = _LAYER_WITH_WEIGHTS.fullmatch(name)
        if match is not None:
            layers, i = [layer for layer in getattr(value, "layers", ()) if layer.weights], int(match[1])
            return layers[i] if i < len(layers) else None
        if name == "vars":  # in a file of Keras's
            return own_variables(value)
    elif name == "vars" and is_variable(getattr(value, "state", None)):
        return [value.state]  # of a `SeedGenerator`
    for attribute in (name, f"_{name}", name.removeprefix("_")):
        try:
            found = getattr(value, attribute, None)
        except Exception:  # a property of the user's, which need not work before something else is done
            continue
        if (found is not None and not callable(found)) or is_keras_object(found):
            return found
    return None


def own_variables(value: PyTree) -> list[keras.Variable]:
    """Returns the variables that a Keras object has itself: without its layers' and its random generators'."""
    import keras

    if not isinstance(value, keras.Layer):
        return list(value.variables)
    of_others = {id(variable) for layer in sublayers(value) for variable in layer.weights}
    return [variable for variable in value.weights if id(variable) not in of_others]


def names_in_list(values: Sequence[PyTree]) -> list[str]:
    """Returns the names that Keras gives to the objects of a list in a file: their classes, numbered."""
    counts: dict[str, int] = {}
    names = []
    for value in values:
        name = snake_case(type(value).__name__)
        counts[name] = counts.get(name, -1) + 1
        names.append(f"{name}_{counts[name]}" if counts[name] else name)
    return names


def snake_case(name: str) -> str:
    """Returns the name that Keras makes of a class's."""
    name = re.sub(r"\W+", "", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)).lower()
