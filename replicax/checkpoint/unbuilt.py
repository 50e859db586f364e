"""Keras objects that are not built: they have not made all of their variables yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from replicax.checkpoint.variable_names import keras_objects
from replicax.compat.keras import sublayers, was_called
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

    from replicax.checkpoint.variable_names import KerasObject


def unbuilt_objects(objects: Mapping[str, PyTree]) -> dict[str, KerasObject]:
    """Returns the Keras models, layers and optimizers in `objects` that are not built, by the paths to them."""
    return {path: found for path, found in keras_objects(objects).items() if is_unbuilt(found)}


def is_unbuilt(value: KerasObject) -> bool:
    """Returns whether a Keras object will make variables when it is built, or called."""
    import keras

    is_built = getattr(value, "built", True)
    if not isinstance(value, keras.Layer):
        return not is_built
    # An object whose class adds nothing to Keras's `build` makes none itself: a `Flatten`, say, or a model around
    # others that is never called. It is complete when all of its layers are built, whatever its `built` says: Keras's
    # own `build` says so and builds nothing inside. A layer that a call has left unbuilt is not used.
    inner = sublayers(value, recursive=False)
    if is_built:
        return _builds_nothing(value) and not was_called(value) and any(map(is_unbuilt, inner))
    plain = _builds_nothing(value) or (bool(inner) and type(value).build is keras.Sequential.build)
    return not plain or any(map(is_unbuilt, inner))


def _builds_nothing(value: keras.Layer) -> bool:
    import keras

    return type(value).build is keras.Layer.build


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
    elif _builds_nothing(value):
        call = "it once on a batch, zeros say (Keras's own `build` builds no layers inside),"
    else:
        call = "model.build(input_shape), or call it once on a batch,"
    return (
        f"{name!r} ({type(value).__name__}) is not built, so that it lacks variables: call {call} first, in the same "
        "scope as it was made."
    )


def layers_left(value: KerasObject) -> str:
    """Returns what to do about layers that an object's `build` has made and not built; mostly `""`."""
    left = [layer.name for layer in layers_in(value) if is_unbuilt(layer)]
    if not left:
        return ""
    return f" Its `build` leaves its layers {left} unbuilt: build them there, or call it once, then restore it."
