"""`model_to_estimator`: an estimator of a compiled Keras model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from replicax.checks import explained
from replicax.contracts.called_as import called_as
from replicax.errors import EstimatorError
from replicax.estimator.estimator import Estimator
from replicax.estimator.run_config import RunConfig

if TYPE_CHECKING:
    import keras


@explained
@called_as("tf.keras.estimator.model_to_estimator")
def model_to_estimator(
    keras_model: keras.Model | None = None,
    keras_model_path: str | os.PathLike[str] | None = None,
    custom_objects: Mapping[str, object] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
) -> Estimator:
    """Makes an estimator of a compiled Keras model, after `tf.keras.estimator.model_to_estimator`.

    The model stays as it is. The estimator trains a copy of it, which begins with its weights; what it has learned is
    in the checkpoints in `model_dir`.

    Args:
        keras_model: The model; or
        keras_model_path: The file of one that was saved with its optimizer (`.keras`).
        custom_objects: Classes and functions that loading the file needs, by name.
        model_dir: As for `Estimator`.
        config: Likewise.

    Raises:
        EstimatorError: Both or neither of the models are given, or it is not compiled or cannot be copied.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> estimator = rx.estimator.model_to_estimator(model)
        >>> x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
        >>> estimator = estimator.train(lambda: [(x, y)], steps=1)
        >>> sorted(estimator.evaluate(lambda: [(x, y)]))
        ['global_step', 'loss']
    """
    if (keras_model is None) == (keras_model_path is None):
        raise EstimatorError("Give either `keras_model` or `keras_model_path`, and not both.")
    if keras_model_path is not None:
        import keras

        keras_model = keras.saving.load_model(keras_model_path, custom_objects=custom_objects)
    return Estimator(keras_model=keras_model, model_dir=model_dir, config=config)
