"""One call of `Estimator.predict`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from replicax.errors import EstimatorError
from replicax.estimator.built_model import BuiltModel
from replicax.estimator.hook_list import Hooks
from replicax.estimator.hooks import HookContext
from replicax.estimator.scopes import own_scope
from replicax.estimator.steps import ModelSteps
from replicax.program import function
from replicax.typing import PyTree


def predictions(
    model: BuiltModel,
    model_dir: str,
    batches: Iterator[PyTree],
    hooks: Sequence[object],
    keys: Sequence[str] | None,
    single: bool,
) -> Iterator[PyTree]:
    """Yields the predictions of a built model that has been restored."""
    _check_keys(model.spec.predictions, keys)
    context = HookContext(model.mode, model_dir, int(model.global_step.numpy()))
    all_hooks = Hooks([*hooks, *(model.spec.prediction_hooks or ())])
    predict = function(ModelSteps(model).predict)
    all_hooks.call("begin", context)
    for batch in batches:
        all_hooks.call("before_step", context)
        with own_scope(model.strategy):  # The caller's code runs between two batches, outside of it.
            found = predict(batch)
        context.note_step(context.step, {})
        all_hooks.call("after_step", context)
        chosen = found if keys is None else {key: found[key] for key in keys}
        arrays = jax.tree_util.tree_map(np.asarray, chosen)
        yield from _examples(arrays) if single else [arrays]
        if context.stop_requested:
            break
    all_hooks.call("end", context)


def _check_keys(found: PyTree, keys: Sequence[str] | None) -> None:
    if keys is None:
        return
    if not isinstance(found, Mapping):
        raise EstimatorError(f"`predict_keys` are keys of a dict, but the predictions are one array; got {list(keys)}.")
    missing = [key for key in keys if key not in found]
    if missing or not keys:
        raise EstimatorError(f"`predict_keys` are among {', '.join(map(repr, found))}, got {list(keys)}.")


def _examples(arrays: PyTree) -> Iterator[PyTree]:
    """Yields the rows of a batch of predictions."""
    named = arrays if isinstance(arrays, Mapping) else {"predictions": arrays}
    rows = {name: array.shape[0] if array.ndim else None for name, array in named.items()}
    if None in rows.values() or len(set(rows.values())) != 1:
        raise EstimatorError(
            f"The predictions have no row for each example: their numbers of rows are {rows}. Ask for whole batches: "
            "predict(yield_single_examples=False)."
        )
    for i in range(next(iter(rows.values())) or 0):
        yield {name: array[i] for name, array in arrays.items()} if isinstance(arrays, Mapping) else arrays[i]
