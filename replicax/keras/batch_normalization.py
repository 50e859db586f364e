"""Batch normalization whose statistics are those of the global batch in a custom loop, as they are in `Model.fit`.

The file loads without Keras. `rx.keras.BatchNormalization`, made by `batch_normalization_class`, is `_Synchronized` on
top of Keras's layer.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp

import replicax.compat.keras as keras_door
import replicax.context as context
from replicax.compat.jax import vary
from replicax.errors import ArgumentError
from replicax.runtime.mesh import REPLICA_AXIS

if TYPE_CHECKING:
    import keras

_Model = TypeVar("_Model")


@functools.cache
def batch_normalization_class() -> Any:
    """Returns the class `rx.keras.BatchNormalization`; imports Keras."""
    import keras

    namespace = {"__doc__": _Synchronized.__doc__, "__module__": "replicax.keras", keras_door.MOMENTS: _moments}
    kind = type("BatchNormalization", (_Synchronized, keras.layers.BatchNormalization), namespace)
    return keras.saving.register_keras_serializable("replicax")(kind)


class _Synchronized:
    """Keras's `BatchNormalization` with `synchronized`, which Keras has on TensorFlow only.

    In a step of `strategy.run` Keras's layer normalizes each replica's rows by their own mean and variance. This one
    takes those of the rows of all replicas: the step computes what one device computes of the whole batch, gradients
    included. With a mask the entries that count are weighted alike, however they are spread over the replicas. The
    replicas exchange three numbers for each channel, once forward and once backward.

    In `Model.fit`, and without a strategy, both are the same: a step sees the global batch there.

    Args:
        synchronized: Whether to do so. Keras's own arguments come before it, and by their names.

    Raises:
        ArgumentError: `synchronized` is no bool.

    Reference:
        Ioffe and Szegedy, "Batch Normalization", 2015; the variances are put together as in Chan, Golub and LeVeque,
        "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.

    Example:
        >>> import replicax as rx
        >>> layer = rx.keras.BatchNormalization(momentum=0.9)
        >>> layer.synchronized
        True
    """

    def __init__(self, *args: Any, synchronized: bool = True, **kwargs: Any):
        super().__init__(*args, **kwargs)  # Keras refuses the argument.
        if not isinstance(synchronized, bool):
            raise ArgumentError(f"`synchronized` is True or False, got {synchronized!r}.")
        self.synchronized = synchronized


def synchronize_batch_normalization(model: _Model, synchronized: bool = True) -> _Model:
    """Makes all `BatchNormalization` layers of a model, at any depth, those of `rx.keras`.

    It is for a model that was made elsewhere, such as a backbone of KerasHub, as `convert_sync_batchnorm` of PyTorch
    is. Weights stay what they are. Call it before the first step: a program that was compiled before stays as it is.

    Args:
        model: A Keras model or layer. It is changed.
        synchronized: Whether its layers normalize by the statistics of the global batch; False undoes it.

    Returns:
        The model.

    Raises:
        ArgumentError: `model` is no layer, or none of its layers is a `BatchNormalization`.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
        >>> model = rx.keras.synchronize_batch_normalization(model)
        >>> type(model.layers[0]).__module__.split(".")[0]
        'replicax'
    """
    import keras

    if not isinstance(model, keras.Layer):
        raise ArgumentError(f"synchronize_batch_normalization takes a Keras model or layer, got {model!r:.100}.")
    layers = keras_door.sublayers(model, include_self=True)
    found = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    if not found:
        raise ArgumentError(f"No layer of {model.name!r} is a keras.layers.BatchNormalization: nothing to synchronize.")
    for layer in found:
        if not isinstance(layer, _Synchronized):
            keras_door.change_class(layer, _synchronized_class)
        layer.synchronized = bool(synchronized)
    return model


@functools.cache
def _synchronized_class(kind: type) -> type:
    """Returns the class of a synchronized layer of a class of Keras's layer, or of one that is derived from it."""
    import keras

    if kind is keras.layers.BatchNormalization:
        return batch_normalization_class()
    namespace = {"__doc__": kind.__doc__, "__module__": kind.__module__, keras_door.MOMENTS: _moments}
    return type(kind.__name__, (_Synchronized, kind), namespace)


def _moments(layer: keras.layers.BatchNormalization, inputs: jax.Array, mask: jax.Array | None) -> Any:
    """Returns the mean and the variance of each channel, shapes `(channels,)`."""
    current = context.current()
    is_alone = current.replica is None or (current.manual_replicas or 1) == 1
    if is_alone or not layer.synchronized:
        return keras_door.own_moments(layer, inputs, mask)
    axes = keras_door.reduction_axes(layer)
    counts = None
    if mask is not None:
        counts = jnp.broadcast_to(jnp.expand_dims(mask, -1), inputs.shape).astype(bool)
    return _of_all_replicas(inputs, counts, tuple(axes), keras_door.epsilon())


def _of_all_replicas(
    x: jax.Array, counts: jax.Array | None, axes: tuple[int, ...], epsilon: float
) -> tuple[jax.Array, jax.Array]:
    """Returns the mean and variance over the rows of all replicas."""
    # `counts` says which entries of `x` count: all if it is None. Keras adds `epsilon` to the number of entries that a
    # mask leaves.
    ones = jnp.ones_like(x) if counts is None else counts.astype(x.dtype)
    number = jnp.sum(ones, axes, keepdims=True)
    total = jnp.sum(x * ones if counts is None else jnp.where(counts, x, 0), axes, keepdims=True)
    distance = (x - total / jnp.maximum(number, 1)) * ones
    own = jnp.stack([number, total, jnp.sum(distance**2, axes, keepdims=True)])
    gathered = jax.lax.all_gather(vary(own, REPLICA_AXIS), REPLICA_AXIS, to="invarying")
    numbers, totals, spreads = (jnp.squeeze(gathered[:, i], [axis + 1 for axis in axes]) for i in range(3))
    divisor = jnp.sum(numbers, 0) + (0 if counts is None else epsilon)
    mean = jnp.sum(totals, 0) / divisor
    between = numbers * (totals / jnp.maximum(numbers, 1) - mean) ** 2
    return mean, jnp.sum(spreads + between, 0) / divisor
