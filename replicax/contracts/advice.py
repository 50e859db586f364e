"""The advice in the error for a name that TensorFlow, PyTorch or another library has and replicax does not."""

from __future__ import annotations

import abc
import functools
import inspect
import operator
import sys
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING

from replicax.errors import AbsentNameError
from replicax.tensorflow.names.all_names import NAMES
from replicax.tensorflow.names.rows import Row

# TensorFlow's modules, and where their names are below `replicax`. The longest match counts.
MODULES = {
    "tf.distribute.experimental.coordinator": "coordinator",
    "tf.distribute.coordinator": "coordinator",
    "tf.distribute.cluster_resolver": "cluster_resolver",
    "tf.distribute.experimental.rpc": "rpc",
    "tf.distribute.experimental.partitioners": "",
    "tf.distribute.experimental": "",
    "tf.distribute": "",
    "tf.experimental.dtensor": "dtensor",
    "tf.types.experimental.distributed": "",
    "tf.config": "config",
    "tf.estimator.export": "estimator",
    "tf.estimator": "estimator",
    "tf.data.experimental": "data",
    "tf.data": "data",
    "tf.nn": "",
    "tf.train": "",
    "tf": "",
}
# TensorFlow's classes whose attributes belong to another class here.
OWNERS = {
    "StrategyExtended": "Strategy",
    "function": "Function",
    "DTensorCheckpoint": "Checkpoint",
    "PerWorkerValue": "PerWorkerValues",
}


def asked_as(tf_name: str) -> str:
    """Returns where a user looks for a name of TensorFlow below `replicax`, such as `"Strategy.extended"`."""
    module = next((known for known in _LONGEST_FIRST if tf_name.startswith(known + ".")), "")
    rest = tf_name.removeprefix(module + ".")
    owner, dot, member = rest.partition(".")
    return ".".join(filter(None, (MODULES.get(module, ""), OWNERS.get(owner, owner) + dot + member if dot else owner)))


_LONGEST_FIRST = sorted(MODULES, key=len, reverse=True)


@functools.cache
def _asked() -> Mapping[str, tuple[str, str, Row]]:
    """Returns a library, its name and its row by the name below `replicax`; for a member of a class also
    without module. Names of others than TensorFlow are known in any module, and on a strategy."""
    from replicax.tensorflow.names.other_libraries import ELSEWHERE, LIBRARIES  # No training needs them.

    found: dict[str, tuple[str, str, Row]] = {}
    for tf_name, row in NAMES.items():
        asked = asked_as(tf_name)
        found.setdefault(asked, ("TensorFlow", tf_name, row))
        parts = asked.split(".")
        if len(parts) > 2:
            found.setdefault(".".join(parts[-2:]), ("TensorFlow", tf_name, row))
    for full_name, row in ELSEWHERE.items():
        library, last = LIBRARIES[full_name.partition(".")[0]], full_name.rpartition(".")[2]
        for asked in (last, f"Strategy.{last}"):
            found.setdefault(asked, (library, full_name, row))
    return found


def advice_for(owner: str, name: str) -> str | None:
    """Returns the advice for a name that `owner` does not have; None if no other library's name is known.

    Args:
        owner: A class (`"Strategy"`) or a module below `replicax` (`"dtensor"`; empty for `replicax` itself).
        name: The name.
    """
    asked = f"{owner}.{name}" if owner else name
    found = _asked().get(asked)
    if found is None:
        return None
    library, full_name, row = found
    if row.here == asked:
        return None  # It exists, but not on this object: for instance only instances have it.
    if row.here:
        return f"{library}'s {full_name} is rx.{row.here} here. {row.note}".rstrip()
    return f"{library}'s {full_name} is not in replicax. {row.note}".rstrip()


def not_found(module: str, name: str) -> AttributeError:
    """Returns the error for a name that a module does not have, for the module's `__getattr__`.

    Args:
        module: The module's `__name__`.
        name: The name.
    """
    advice = None if name.startswith("_") else advice_for(module.removeprefix("replicax").removeprefix("."), name)
    if advice is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules.get(module))
    return AbsentNameError(f"module {module!r}", name, advice)


def resolved(root: types.ModuleType, row: Row) -> object:
    """Returns the object that a row names below `replicax`.

    Args:
        root: The module `replicax`.
        row: A row that has a name here; for an attribute that only instances have, its type is returned.
    """
    *path, last = row.here.split(".")
    owner = operator.attrgetter(".".join(path))(root) if path else root
    for base in getattr(owner, "__mro__", ()):
        annotations = inspect.get_annotations(base)
        if last in annotations:  # Only instances have it.
            return annotations[last]
        if last in vars(base):
            break
    return getattr(owner, last)


def _raise_advice(cls: type, name: str, owner: str) -> None:
    if name.startswith("_"):
        return
    for base in cls.__mro__:
        advice = advice_for(base.__name__, name)
        if advice is not None:
            raise AbsentNameError(owner, name, advice)


class AdvisedType(type):
    """The type of classes that give advice for their own attributes, as in `rx.Variable.scatter_add`."""

    if not TYPE_CHECKING:  # For a type checker every attribute would exist.

        def __getattr__(cls, name: str) -> object:
            _raise_advice(cls, name, f"type object {cls.__name__!r}")
            return super().__getattribute__(name)


class AdvisedContractType(AdvisedType, abc.ABCMeta):
    """The same for abstract classes. (`isinstance` is slow there, so other classes do not use it.)"""


class Advised(metaclass=AdvisedType):
    """A class that gives advice, like its objects, for an attribute that only TensorFlow's class of this name has."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            _raise_advice(type(self), name, f"{type(self).__name__!r} object")
            return object.__getattribute__(self, name)  # Once more, for Python's own error or that of a property.


class AdvisedContract(Advised, metaclass=AdvisedContractType):
    """The same for abstract classes."""

    __slots__ = ()
