"""Which variables a checkpoint of some objects holds, and under which names."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

import jax
import numpy as np

from replicax.compat.keras import sublayers
from replicax.errors import CheckpointError
from replicax.program.keras_backend import keras_is_loaded
from replicax.variable_access import VariableLike
from replicax.variables import Variable

_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, np.ndarray, np.generic, jax.Array)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


def variables_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables in `objects` by name.

    Lists, tuples and dicts are gone through, and the attributes of plain objects; a name is the way to the variable,
    such as `model/layers/0/w`. The variables of a Keras model, layer, optimizer or metric are numbered instead: Keras
    names depend on how many others were made before. A variable that is found twice has the first name.

    Raises:
        CheckpointError: An object holds no variable, a dict's key is not a string or number, or two variables would
            have the same name.
    """
    seen: set[int] = set()
    found: dict[str, Any] = {}
    for name, value in objects.items():
        named = list(walk(value, name, seen))
        if not named and id(value) not in seen:
            raise CheckpointError(
                f"There is no variable in {name or 'root'}={value!r:.100}: nothing of it can be saved."
            )
        for path, variable in named:
            if path in found:
                raise CheckpointError(f"Two variables would both be called {path!r}. Rename one of them.")
            found[path] = variable
    return found


def walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields the variables in `value` and their names, without those whose `id` is among `seen`, and adds these."""
    return _found(value, path, seen, is_variable)


def unbuilt(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the Keras models, layers and optimizers in `objects` that are not built, by the names of the way to them.

    They make their variables, or most of them, when they are.
    """
    return {path: found for path, found in keras_objects(objects).items() if is_unbuilt(found)}


def keras_objects(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the Keras models, layers, optimizers and metrics in `objects`, by the names of the way to them."""
    seen: set[int] = set()
    each = (_found(value, name, seen, is_keras_object) for name, value in objects.items())
    return dict(itertools.chain.from_iterable(each))


def is_unbuilt(value: Any) -> bool:
    """Returns whether a Keras object will make variables when it is built.

    One whose class adds nothing to Keras's `build` makes none itself: a `Flatten`, say, or a model around others that
    is never called. With all of its layers built it is whole, whatever its `built` says.
    """
    import keras

    if getattr(value, "built", True):
        return False
    if not isinstance(value, keras.Layer):
        return True
    inner = layers_in(value)
    build = type(value).build
    plain = build is keras.Layer.build or (bool(inner) and build in (keras.Model.build, keras.Sequential.build))
    return not plain or any(is_unbuilt(each) for each in inner)


def layers_in(value: Any) -> list[Any]:
    """Returns the layers that a Keras object holds, at any depth; none for an optimizer."""
    import keras

    return sublayers(value) if isinstance(value, keras.Layer) else []


def is_append_only(value: Any) -> bool:
    """Returns whether the variables that a Keras object has before it is built keep their numbers.

    An optimizer's do: its counter and learning rate come first. (One that wraps another lists its own first.) A layer
    lists its weights before the seeds that it has from the beginning.
    """
    import keras

    base = keras.optimizers.Optimizer
    return isinstance(value, base) and type(value).variables is base.variables


def how_to_build(name: str, value: Any) -> str:
    """Returns what to do about a Keras object that is not built, as a sentence."""
    import keras

    if isinstance(value, keras.optimizers.Optimizer):
        call = "optimizer.build(model.trainable_variables)"
    else:
        call = "model.build(input_shape), or call it once on a batch,"
    return (
        f"{name!r} ({type(value).__name__}) is not built, so that it lacks variables: call {call} first, in the same "
        "scope as it was made."
    )


def _found(value: Any, path: str, seen: set[int], is_wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Yields what is wanted in `value` and the names of the way to it; nothing in a variable, or in what was wanted."""
    if isinstance(value, _LEAVES + _CODE) or id(value) in seen:
        return
    seen.add(id(value))
    if is_wanted(value):
        yield path, value
    elif not is_variable(value):
        for name, child in _children(value):
            yield from _found(child, f"{path}/{name}" if path else name, seen, is_wanted)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if is_keras_object(value):
        yield from ((str(i), variable) for i, variable in enumerate(value.variables))
    elif isinstance(value, Mapping):
        yield from ((key_name(key), child) for key, child in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(i), child) for i, child in enumerate(value))
    else:
        yield from getattr(value, "__dict__", {}).items()


def is_variable(value: object) -> TypeGuard[VariableLike]:
    """Returns whether `value` is a variable, of replicax or of Keras."""
    if isinstance(value, Variable):
        return True
    if not keras_is_loaded():
        return False
    import keras

    return isinstance(value, keras.Variable)


def is_keras_object(value: Any) -> bool:
    """Returns whether `value` is of Keras and lists its own variables."""
    if not keras_is_loaded():
        return False
    import keras

    return isinstance(value, (keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric))


def key_name(key: Any) -> str:
    """Returns the name of what a dict has under `key`."""
    if not isinstance(key, (str, int)) or "/" in str(key):
        raise CheckpointError(f"A dict in a checkpoint has string or int keys without '/', got {key!r}.")
    return str(key)
