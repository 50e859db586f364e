"""Which variables a checkpoint of some objects holds, and under which names.

Lists, tuples, dicts and the attributes of plain objects are searched; a name is the path to the variable, such as
`model/layers/0/w`. The variables of a Keras model, layer, optimizer or metric have their index as name instead: Keras
names depend on how many others were made before. A variable that is found twice has the first name.
"""

from __future__ import annotations

import itertools
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

import jax
import numpy as np

import replicax.compat.keras as keras_door
from replicax.compat.keras_backend import keras_is_loaded
from replicax.contracts.variable_access import AssignableLike
from replicax.errors import CheckpointError
from replicax.program.flax.variables import FlaxVariable
from replicax.typing import Leaf, PyTree
from replicax.variables import Variable

if TYPE_CHECKING:
    import keras

    KerasObject: TypeAlias = keras.Layer | keras.optimizers.Optimizer | keras.metrics.Metric

_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, np.ndarray, np.generic, jax.Array)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


def variables_of(objects: Mapping[str, PyTree]) -> dict[str, AssignableLike]:
    """Returns the variables in `objects` by name."""
    seen: set[int] = set()
    found: dict[str, AssignableLike] = {}
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


def walk(value: PyTree, path: str, seen: set[int]) -> Iterator[tuple[str, AssignableLike]]:
    """Yields the variables in `value`, and their names below `path`; `seen` has the `id` of each object searched."""
    return _found(value, path, seen, is_variable)


def keras_objects(objects: Mapping[str, PyTree]) -> dict[str, KerasObject]:
    """Returns the Keras models, layers, optimizers and metrics in `objects`, by the paths to them."""
    seen: set[int] = set()
    # A strategy tells its state itself; what it keeps for its work is nobody's to restore.
    each = (_found(x, name, seen, is_keras_object) for name, x in objects.items() if not hasattr(x, "own_values"))
    return dict(itertools.chain.from_iterable(each))


def kinds_of_optimizers(objects: Mapping[str, PyTree]) -> dict[str, list[str]]:
    """Returns what the variables of Keras optimizers mean, by name: a slot of each class, the narrowest first."""
    if not keras_is_loaded():
        return {}
    import keras

    base, kinds = keras.optimizers.Optimizer, dict[str, list[str]]()
    for path, each in keras_objects(objects).items():
        meanings: dict[int, list[str]] = {}
        optimizer = each
        while isinstance(optimizer, base):  # One that wraps another lists the variables of both.
            classes = [kind.__name__ for kind in type(optimizer).__mro__ if kind is not base and issubclass(kind, base)]
            own = keras_door.trainable_variables_of(optimizer)
            paths, names = {re.sub("[/:]", "_", getattr(v, "path", v.name)) for v in own}, {v.name for v in own}
            for variable in optimizer.variables:
                slot = _slot(variable.name, paths, names)
                meanings[id(variable)] = [f"the {slot} of {kind}" for kind in classes]
            optimizer = getattr(optimizer, "inner_optimizer", None)
        if meanings:
            named = _children(each)
            kinds |= {f"{path}/{name}" if path else name: meanings[id(variable)] for name, variable in named}
    return kinds


def _slot(name: str, paths: Collection[str], names: Collection[str]) -> str:
    """Returns the name of an optimizer's variable without what differs between two runs of a script."""
    ends = (found.start() for found in reversed([*re.finditer("_", name)]))
    slot = next((name[end + 1 :] for end in ends if name[:end] in paths), None)
    if slot is not None:
        return slot
    # One that was made without a name has a number, or the name of what it belongs to (in Adafactor).
    return "variable" if name in names or re.fullmatch(r"variable_\d+", name) else name


def _found(value: PyTree, path: str, seen: set[int], is_wanted: Callable[[Leaf], bool]) -> Iterator[tuple[str, Leaf]]:
    """Yields what is wanted in `value` and the paths to it; it searches neither variables nor what was wanted."""
    if isinstance(value, _LEAVES + _CODE) or id(value) in seen:
        return
    seen.add(id(value))
    if is_wanted(value):
        yield path, value
    elif not is_variable(value):
        for name, child in _children(value):
            yield from _found(child, f"{path}/{name}" if path else name, seen, is_wanted)


def _children(value: PyTree) -> Iterator[tuple[str, PyTree]]:
    if is_keras_object(value):
        yield from ((str(i), variable) for i, variable in enumerate(value.variables))
    elif isinstance(value, Mapping):
        yield from ((key_name(key), child) for key, child in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(i), child) for i, child in enumerate(value))
    else:
        yield from getattr(value, "__dict__", {}).items()


def is_variable(value: object) -> TypeGuard[AssignableLike]:
    """Returns whether `value` is a variable, of replicax or of Keras, or stands for one of flax."""
    if isinstance(value, (Variable, FlaxVariable)):
        return True
    if not keras_is_loaded():
        return False
    import keras

    return isinstance(value, keras.Variable)


def is_keras_object(value: object) -> TypeGuard[KerasObject]:
    """Returns whether `value` is an object of Keras that lists its own variables."""
    if not keras_is_loaded():
        return False
    import keras

    return isinstance(value, (keras.Layer, keras.optimizers.Optimizer, keras.metrics.Metric))


def key_name(key: object) -> str:
    """Returns the name of what a dict has under `key`."""
    if not isinstance(key, (str, int)) or "/" in str(key):
        raise CheckpointError(f"A dict in a checkpoint has string or int keys without '/', got {key!r}.")
    return str(key)
