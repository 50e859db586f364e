"""The training step of a model's `fit` as JAX lowers it, to be looked at and not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from replicax.compat.keras import build_for
from replicax.errors import ArgumentError
from replicax.keras.models import batch_of, strategy_of
from replicax.keras.trainer import StepFunctions
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras


def lowered_train_step(model: keras.Model, batch: PyTree) -> tuple[jax.stages.Lowered, int]:
    """Returns the program of one training step, and the number of rows of its batch."""
    strategy = strategy_of(model)
    if strategy is None:
        raise ArgumentError(f"{model!r:.100} belongs to no strategy: make it in the scope of one.")
    if batch is None:  # One row for each replica, like those that the model has been trained on.
        row = batch_of(model)
        if row is None:
            raise ArgumentError(f"Model {model.name!r} has not been trained yet: give a batch of its, step=(x, y).")
        batch = jax.tree.map(lambda leaf: np.repeat(leaf, strategy.num_replicas_in_sync, axis=0), row)
    batch = jax.tree.map(np.asarray, batch)
    with strategy.scope():
        build_for(model, batch)
    rows = max((len(leaf) for leaf in jax.tree.leaves(batch) if np.ndim(leaf)), default=0)
    return StepFunctions(model, strategy, model._replicax).lowered_training(batch), rows
