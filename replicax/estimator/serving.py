"""Exports of an estimator's model."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import jax
import numpy as np

from replicax.errors import EstimatorError
from replicax.estimator.built_model import BuiltModel, ModelCall
from replicax.estimator.mode_keys import ModeKeys
from replicax.estimator.scopes import own_scope
from replicax.estimator.steps import ModelSteps
from replicax.exporting import export
from replicax.program import TensorSpec
from replicax.strategies.no_strategy import default_strategy
from replicax.typing import PyTree


def export_model(call: ModelCall, checkpoint: str, base: str | os.PathLike[str], serving_input: PyTree) -> str:
    """Exports the model of a checkpoint to a new folder in `base` and returns its path."""
    features = serving_input() if callable(serving_input) else serving_input
    if features is None or not jax.tree_util.tree_leaves(features):
        raise EstimatorError(
            f"`serving_input` tells what features look like: a pytree of arrays or of rx.TensorSpec; got "
            f"{features!r:.100}."
        )
    strategy = default_strategy()
    with own_scope(strategy):
        model = BuiltModel(call, ModeKeys.PREDICT, strategy)
        model.build(jax.tree_util.tree_map(_example, features))
        model.restore(checkpoint)
        return str(export(ModelSteps(model).serve, _new_folder(base), _symbolic(features)))


def _example(leaf: PyTree) -> np.ndarray:
    """Returns an array like those that a leaf stands for, of one row where the number is open."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        shape = tuple(length if isinstance(length, int) else 1 for length in leaf.shape)
        return np.zeros(shape, leaf.dtype)
    return np.zeros(np.shape(leaf), np.asarray(leaf).dtype)


def _symbolic(features: PyTree) -> PyTree:
    """Returns features with symbolic lengths in the place of those that are None: the first is the number of rows."""
    leaves, treedef = jax.tree_util.tree_flatten(features)
    names, scope = itertools.count(), jax.export.SymbolicScope()

    def abstract(leaf: PyTree) -> PyTree:
        if not isinstance(leaf, TensorSpec):
            return leaf
        given = [
            length if length is not None else "rows" if i == 0 else f"n{next(names)}"
            for i, length in enumerate(leaf.shape)
        ]
        shape = jax.export.symbolic_shape(", ".join(map(str, given)), scope=scope) if given else ()
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    return jax.tree_util.tree_unflatten(treedef, [abstract(leaf) for leaf in leaves])


def _new_folder(base: str | os.PathLike[str]) -> Path:
    """Returns a path in `base` named by the time in seconds, later than those that are there."""
    folder = Path(os.path.abspath(base))
    folder.mkdir(parents=True, exist_ok=True)
    now = int(time.time())
    while (folder / str(now)).exists():
        now += 1
    return folder / str(now)
