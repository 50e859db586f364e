"""The user's own classes, functions and objects that a Keras model names, on their way to another process.

Keras finds such objects by names, under which users register them. Here each of them gets a name of its own for the
time of the way, so that none needs to be registered and two of the same name are not confused.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, cast

from replicax.compat.keras_saving import has_variables, is_saveable, serialized_under
from replicax.job.processes.call import why_not_sendable

_ARGUMENTS = "_replicax_arguments"


class Held:
    """An object that travels itself, because Keras's configuration of it would not tell all: a loss, a schedule."""

    def __init__(self, value: object):
        self.value = value

    def from_config(self, config: Mapping[str, object]) -> object:
        """Returns the object: Keras calls this as if it were a class."""
        return self.value

    def __reduce__(self) -> tuple[Callable[..., Held], tuple[object, ...]]:
        if is_saveable(self.value):  # Keras would pickle its configuration.
            return _held, (type(self.value), vars(self.value))
        return Held, (self.value,)


def _held(kind: type, attributes: dict[str, object]) -> Held:
    value: object = object.__new__(kind)
    vars(value).update(attributes)
    return Held(value)


class Constructed:
    """A model's class whose configuration is the arguments that the model was made with."""

    def __init__(self, kind: type):
        self.kind = kind

    def from_config(self, config: Mapping[str, object]) -> object:
        """Returns a model: Keras calls this as if it were a class."""
        import keras

        given = keras.saving.deserialize_keras_object(dict(config), safe_mode=False)
        return self.kind(*given["args"], **given["kwargs"])


class CustomObjects(NamedTuple):
    """The user's objects that a configuration names."""

    named: Mapping[str, object]  # classes, functions and held objects, by their names in the configuration
    registered: Mapping[str, object]  # those that the user has registered with Keras, by their own names

    @classmethod
    def of(cls, serialize: Callable[[], object]) -> tuple[object, CustomObjects]:
        """Returns a configuration, and the user's objects in it."""
        registered = _registered()  # before anything has other names
        names = _Names()
        with serialized_under(names.give):
            config = serialize()
        return config, cls(names.objects, registered)

    @contextlib.contextmanager
    def known(self) -> Iterator[None]:
        """Lets Keras find the objects by their names in the block, and for good those that the user has registered."""
        import keras

        for name, found in self.registered.items():
            if name in keras.saving.get_custom_objects():
                continue
            package, separator, own = name.partition(">")
            if separator:
                keras.saving.register_keras_serializable(package, own)(found)
            else:
                keras.saving.get_custom_objects()[name] = found
        with keras.saving.custom_object_scope(dict(self.named)):
            yield


class _Names:
    """The names that objects get while a model is serialized."""

    def __init__(self) -> None:
        self.objects: dict[str, object] = {}
        self._given: dict[int, tuple[str, object]] = {}

    def give(self, found: object) -> tuple[str, dict[str, object] | None] | None:
        """Returns the name of a function or of an object's class, with its configuration if Keras need not make it."""
        is_function = hasattr(found, "__code__")
        if is_function or isinstance(found, type) or not has_variables(found):
            if not _is_the_users(found if is_function or isinstance(found, type) else type(found)):
                return None
            return self._name(found if is_function else Held(found), found), {}
        kind = type(found)
        if not _is_the_users(kind):
            return None
        arguments = _arguments_of(found)
        return self._name(kind if arguments is None else Constructed(kind), kind), arguments

    def _name(self, sent: object, found: object) -> str:
        if id(found) not in self._given:
            name = f"replicax>{len(self._given)}.{getattr(found, '__name__', type(found).__name__)}"
            self._given[id(found)] = name, found  # so that no other object gets its number
            self.objects[name] = sent
        return self._given[id(found)][0]


def remembering_arguments(original: Callable[..., object]) -> Callable[..., object]:
    """Returns `Model.__new__` so that a model knows the arguments it was made with."""

    @functools.wraps(original)
    def __new__(cls: type, *args: object, **kwargs: object) -> object:
        made = original(cls, *args, **kwargs)
        if _is_the_users(cls):
            vars(made)[_ARGUMENTS] = args, kwargs  # Keras must not track what is in them.
        return made

    return __new__


def _arguments_of(found: object) -> dict[str, object] | None:
    """Returns what a model of a class with an own `__init__` and without an own `get_config` was made with."""
    args, kwargs = vars(found).get(_ARGUMENTS, (None, {}))
    made_by, told_by = (getattr(type(found), name, None) for name in ("__init__", "get_config"))
    if args is None or not callable(made_by) or not _is_the_users(made_by) or _is_the_users(told_by):
        return None
    accepted = inspect.signature(made_by).parameters
    takes_a_name = "name" in accepted or any(each.kind is each.VAR_KEYWORD for each in accepted.values())
    if takes_a_name and "name" not in (*kwargs, *list(accepted)[1 : 1 + len(args)]):
        kwargs = {**kwargs, "name": getattr(found, "name", None)}
    return {"args": args, "kwargs": kwargs}


def _is_the_users(found: object) -> bool:
    return (getattr(found, "__module__", None) or "").partition(".")[0] != "keras"


def _registered() -> dict[str, object]:
    """Returns what the user has registered with Keras; libraries do it again when they are imported."""
    import keras

    found = cast("dict[str, object]", keras.saving.get_custom_objects())
    return {name: value for name, value in found.items() if _is_of_script(value) and why_not_sendable(value) is None}


def _is_of_script(found: object) -> bool:
    module = sys.modules.get(getattr(found, "__module__", None) or "")
    return "site-packages" not in (getattr(module, "__file__", None) or "")
