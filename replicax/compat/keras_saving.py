"""Names of Keras's serialization that replicax needs beyond its public ones."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

#: Tells under which name an object's class or a function is serialized, and with which configuration; None: Keras's.
Namer = Callable[[object], "tuple[str, dict[str, object] | None] | None"]


@contextlib.contextmanager
def serialized_under(name: Namer) -> Iterator[None]:
    """Makes Keras serialize objects under other names, and lambdas as functions, while the block runs."""
    # Without the names: users must register each class, and functions by a name of their own; lambdas cannot be sent.
    from keras.src.saving import object_registration, serialization_lib

    names: dict[Any, str] = object_registration.GLOBAL_CUSTOM_NAMES
    config_of, serialize = serialization_lib._get_class_or_fn_config, serialization_lib.serialize_keras_object

    def named(found: Any) -> Any:
        given = name(found)
        if given is None:
            return config_of(found)
        is_function = isinstance(found, types.FunctionType)
        names[found if is_function else type(found)] = given[0]
        if is_function:
            return given[0]
        return config_of(found) if given[1] is None else serialization_lib.serialize_dict(given[1])

    def without_lambdas(found: Any) -> Any:
        if isinstance(found, types.FunctionType) and found.__name__ == "<lambda>":
            config = named(found)
            return {"module": "builtins", "class_name": "function", "config": config, "registered_name": "function"}
        return serialize(found)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(names))
        stack.enter_context(mock.patch.object(serialization_lib, "_get_class_or_fn_config", named))
        stack.enter_context(mock.patch.object(serialization_lib, "serialize_keras_object", without_lambdas))
        stack.enter_context(_lambda_layers(without_lambdas))
        yield


def _lambda_layers(serialize: Callable[[Any], Any]) -> contextlib.AbstractContextManager[object]:
    """Keras writes the bytecode of their functions, without the globals that these use."""
    import keras

    of_layer = "_serialize_function_to_config"
    return mock.patch.object(keras.layers.Lambda, of_layer, lambda layer, fn: serialize(fn))


def is_saveable(found: object) -> bool:
    """Returns whether an object is pickled by Keras's own format. Without the class: all have `get_config`."""
    from keras.src.saving.keras_saveable import KerasSaveable

    return isinstance(found, KerasSaveable)


def has_variables(found: object) -> bool:
    """Returns whether Keras makes variables in an object: a layer, a model, a metric or an optimizer."""
    import keras

    return isinstance(found, (keras.Layer, keras.Metric, keras.optimizers.Optimizer))
