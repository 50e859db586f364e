"""The data of an input function: datasets, and the features and labels in their batches."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from replicax.errors import EstimatorError
from replicax.estimator.mode_keys import ModeKeys
from replicax.typing import PyTree


def features_and_labels(batch: PyTree, mode: str) -> tuple[PyTree, PyTree]:
    """Returns the features and labels of a batch: labels are None where there are none, and in a prediction."""
    if not isinstance(batch, (tuple, list)):  # Iterators yield a tuple as a list.
        return batch, None
    if mode == ModeKeys.PREDICT and batch:
        return batch[0], None
    if len(batch) != 2:
        raise EstimatorError(
            f"A batch of an input function is a pair (features, labels), or features alone; got a "
            f"{type(batch).__name__} of {len(batch)}. Several features go in a dict: ({{'a': a, 'b': b}}, labels)."
        )
    return batch[0], batch[1]


def is_one_batch(data: PyTree) -> bool:
    """Returns whether an input function has returned a batch itself, and no dataset: arrays, or a tuple or dict."""
    return isinstance(data, (tuple, Mapping, np.ndarray, jax.Array))


def num_rows(features: PyTree) -> int:
    """Returns the number of rows of features."""
    leaves = jax.tree_util.tree_leaves(features)
    if not leaves or not np.shape(leaves[0]):
        raise EstimatorError(f"Features are arrays with a row for each example, got {features!r:.100}.")
    return int(np.shape(leaves[0])[0])
