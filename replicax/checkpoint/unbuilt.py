"""Keras objects that are not built: they have not made all of their variables yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from replicax.checkpoint.variable_names import keras_objects
from replicax.compat.keras import sublayers
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

    from replicax.checkpoint.variable_names import KerasObject


def unbuilt_objects(objects: Mapping[str, PyTree]) -> dict[str, KerasObject]:
    """Returns the Keras models, layers and optimizers in `objects` that are not built, by the paths to them."""
    return {path: found for path, found in keras_objects(objects).items() if is_unbuilt(found)}


def is_unbuilt(value: KerasObject) -> bool:
    """Returns whether a Keras object will make variables when it is built."""
    import keras

    if getattr(value, "built", True):
        return False
    if not isinstance(value, keras.Layer):
        return True
    # An object whose class adds nothing to Keras's `build` makes none itself: a `Flatten`, say, or a model around
    # others that is never called. It is complete when all of its layers are built, whatever its `built` says.
    inner = layers_in(value)
    build = type(value).build
    plain = build is keras.Layer.build or (bool(inner) and build in (keras.Model.build, keras.Sequential.build))
    return not plain or any(is_unbuilt(each) for each in inner)


def layers_in(value: KerasObject) -> list[keras.Layer]:
    """Returns the layers that a Keras object holds, at any depth; none for an optimizer."""
    import keras

    return sublayers(value) if isinstance(value, keras.Layer) else []


def is_append_only(value: KerasObject) -> bool:
    """Returns whether the variables that a Keras object has before it is built keep their index."""
    import keras

    # Those of an optimizer do: its counter and learning rate come first. (An optimizer that wraps another lists its own
    # variables first.) A layer lists its weights before the seeds that it has from the beginning.
    base = keras.optimizers.Optimizer
    return isinstance(value, base) and type(value).variables is base.variables


def how_to_build(name: str, value: KerasObject) -> str:
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
