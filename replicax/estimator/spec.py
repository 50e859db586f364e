"""`EstimatorSpec`: what a model function returns."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.contracts.variable_access import VariableLike
from replicax.errors import EstimatorError
from replicax.estimator.mode_keys import ModeKeys
from replicax.typing import PyTree

DEFAULT_SIGNATURE = "serving_default"
_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
_REDUCTIONS = ("mean", "sum")


class Metric(Protocol):
    """A Keras metric."""

    @property
    def variables(self) -> list[VariableLike]:
        """The variables that it counts in."""

    def result(self) -> PyTree:
        """Returns its value: an array, or a dict of arrays."""


def is_metric(value: object) -> TypeGuard[Metric]:
    """Returns whether a value is a Keras metric, or something that has the same methods."""
    return callable(getattr(value, "result", None)) and hasattr(value, "variables")


@called_as("tf.estimator.EstimatorSpec")
@dataclasses.dataclass(frozen=True)
class EstimatorSpec(Advised):
    """The values that a model function has computed from a batch, and how the training updates the variables.

    A function may fill in all fields in every mode; those that a mode does not need are ignored.

    Attributes:
        mode: The `mode` that the function was called with.
        predictions: An array with a row for each example, or a dict of such arrays. Needed to predict.
        loss: A scalar float. Needed to train and to evaluate.
        train_op: To train, beside `optimizer`: a function without arguments, which updates the variables itself; or
            one that takes a list of pairs `(gradient, variable)` of the loss and updates from them.
        eval_metric_ops: Metrics by name: Keras metrics that the function has updated with this batch; or arrays, of
            which the mean is taken over all rows (a number for the batch counts as often as the batch has rows).
        export_outputs: What an exported model returns, by the name of the signature; by default the predictions. If
            there are several, one is called `"serving_default"`.
        training_chief_hooks: Hooks of the training, in the chief only.
        training_hooks: Hooks of the training.
        evaluation_hooks: Hooks of the evaluation.
        prediction_hooks: Hooks of the prediction.
        optimizer: To train: a Keras optimizer, or one of optax. It updates all trainable variables.
        loss_reduction: Whether the loss is the `"mean"` over the rows that the function has seen, or their `"sum"`
            (which includes a sum that is divided by a number of your own). The rows of a batch lie on several
            replicas; so it says how their losses and gradients are put together.

    Raises:
        EstimatorError: A field is missing that the mode needs, or has the wrong type or shape.

    Example:
        >>> import jax.numpy as jnp
        >>> spec = rx.estimator.EstimatorSpec(rx.estimator.ModeKeys.PREDICT, predictions={"x": jnp.ones(3)})
        >>> spec.mode
        'infer'
    """

    mode: str
    predictions: PyTree = None
    loss: PyTree = None
    train_op: Callable[..., object] | None = None
    eval_metric_ops: Mapping[str, PyTree] | None = None
    export_outputs: Mapping[str, PyTree] | None = None
    training_chief_hooks: Iterable[object] | None = None
    training_hooks: Iterable[object] | None = None
    evaluation_hooks: Iterable[object] | None = None
    prediction_hooks: Iterable[object] | None = None
    optimizer: PyTree = dataclasses.field(default=None, kw_only=True)
    loss_reduction: str = dataclasses.field(default="mean", kw_only=True)

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise EstimatorError(f"`mode` of an EstimatorSpec is one of {_MODES}, got {self.mode!r:.100}.")
        if self.loss_reduction not in _REDUCTIONS:
            raise EstimatorError(f"`loss_reduction` is 'mean' or 'sum', got {self.loss_reduction!r:.100}.")
        self._set("loss", _checked_loss(self.loss, self.mode))
        self._set("predictions", _checked_predictions(self.predictions, self.mode))
        self._set("eval_metric_ops", _checked_metrics(self.eval_metric_ops))
        self._set("export_outputs", _checked_outputs(self.export_outputs, self.predictions, self.mode))
        _check_update(self.train_op, self.optimizer, self.mode)
        for name in ("training_chief_hooks", "training_hooks", "evaluation_hooks", "prediction_hooks"):
            self._set(name, _checked_hooks(name, getattr(self, name)))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def metrics(self) -> dict[str, Metric]:
        """The Keras metrics among `eval_metric_ops`."""
        return {name: each for name, each in (self.eval_metric_ops or {}).items() if is_metric(each)}

    @property
    def means(self) -> dict[str, jax.Array]:
        """The other ones: the mean of each over the rows of this batch."""
        given = {name: each for name, each in (self.eval_metric_ops or {}).items() if not is_metric(each)}
        return {name: jnp.mean(jnp.asarray(each, jnp.float32)) for name, each in given.items()}

    def replace(self, **changes: PyTree) -> EstimatorSpec:
        """Returns a copy with other fields; `mode` cannot be changed."""
        if changes.get("mode", self.mode) != self.mode:
            raise EstimatorError(f"The mode of an EstimatorSpec cannot be changed from {self.mode!r}.")
        return dataclasses.replace(self, **changes)


def takes_gradients(train_op: Callable[..., object]) -> bool:
    """Returns whether a `train_op` takes the pairs of gradients and variables."""
    try:
        parameters = inspect.signature(train_op).parameters.values()
    except ValueError:  # a function of C, which does not tell them
        return False
    needed = [
        each
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        raise EstimatorError(
            "`train_op` is a function without arguments, or of one: the list of pairs (gradient, variable). Got "
            f"{train_op!r:.100}, which takes {[each.name for each in needed]}."
        )
    return bool(needed)


def _is_array(value: object) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, np.generic, int, float)) or hasattr(value, "__jax_array__")


def _checked_loss(loss: PyTree, mode: str) -> PyTree:
    if loss is None:
        if mode != ModeKeys.PREDICT:
            raise EstimatorError(f"Missing loss: to {_verb(mode)}, an EstimatorSpec needs `loss`, a scalar float.")
        return None
    if not _is_array(loss):
        raise EstimatorError(f"The loss of an EstimatorSpec is a scalar float, got {loss!r:.100}.")
    array = jnp.asarray(loss)
    if array.size != 1 or not jnp.issubdtype(array.dtype, jnp.floating):
        raise EstimatorError(
            f"The loss of an EstimatorSpec is a scalar float, got shape {array.shape} and dtype {array.dtype}. Take "
            "the mean over the rows: keras.ops.mean(loss)."
        )
    return array.reshape(())


def _checked_predictions(predictions: PyTree, mode: str) -> PyTree:
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise EstimatorError("Missing predictions: to predict, an EstimatorSpec needs `predictions`.")
        return None
    return _arrays("predictions", predictions)


def _arrays(name: str, value: PyTree) -> PyTree:
    """Returns an array, or a dict of arrays by strings."""
    if not isinstance(value, Mapping):
        if not _is_array(value):
            raise EstimatorError(f"`{name}` is an array or a dict of arrays, got {value!r:.100}.")
        return jnp.asarray(value)
    if not value:
        raise EstimatorError(f"`{name}` is an empty dict: there is nothing in it to return.")
    for key, each in value.items():
        if not isinstance(key, str) or not _is_array(each):
            raise EstimatorError(
                f"`{name}` is an array or a dict of arrays by strings; of {key!r} it has {each!r:.100}."
            )
    return {key: jnp.asarray(each) for key, each in value.items()}


def _checked_metrics(metrics: Mapping[str, PyTree] | None) -> dict[str, PyTree]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise EstimatorError(f"`eval_metric_ops` is a dict of metrics by name, got {metrics!r:.100}.")
    for name, each in metrics.items():
        if not isinstance(name, str) or not name:
            raise EstimatorError(f"The names in `eval_metric_ops` are strings, got {name!r:.100}.")
        if name in ("loss", "global_step"):
            raise EstimatorError(
                f"A metric in `eval_metric_ops` is called {name!r}, as the evaluation's own. Rename it."
            )
        if isinstance(each, type) or not (is_metric(each) or _is_array(each)):
            raise EstimatorError(
                f"`eval_metric_ops` holds Keras metrics (objects, already updated with the batch) and arrays; {name!r} "
                f"is {each!r:.100}."
            )
    return dict(metrics)


def _checked_outputs(outputs: Mapping[str, PyTree] | None, predictions: PyTree, mode: str) -> dict[str, PyTree] | None:
    if mode != ModeKeys.PREDICT:
        return None
    if outputs is None:
        return {DEFAULT_SIGNATURE: predictions}
    if not isinstance(outputs, Mapping) or not outputs or not all(isinstance(name, str) for name in outputs):
        raise EstimatorError(f"`export_outputs` is a dict of outputs by the names of signatures, got {outputs!r:.100}.")
    if len(outputs) > 1 and DEFAULT_SIGNATURE not in outputs:
        raise EstimatorError(
            f"Of several `export_outputs` one is called {DEFAULT_SIGNATURE!r}; got {', '.join(map(repr, outputs))}."
        )
    return {name: _arrays(f"export_outputs[{name!r}]", each) for name, each in outputs.items()}


def _check_update(train_op: object, optimizer: object, mode: str) -> None:
    if train_op is not None and not callable(train_op):
        raise EstimatorError(
            f"`train_op` is a function that updates the variables when it is called, got {train_op!r:.100}. An "
            "optimizer can be given as `optimizer`."
        )
    if optimizer is not None and not (hasattr(optimizer, "apply") or hasattr(optimizer, "update")):
        raise EstimatorError(f"`optimizer` is a Keras optimizer, or one of optax, got {optimizer!r:.100}.")
    if mode != ModeKeys.TRAIN:
        return
    if (train_op is None) == (optimizer is None):
        given = "Got both." if optimizer is not None else "Missing train_op: got neither."
        raise EstimatorError(
            f"To train, an EstimatorSpec needs an `optimizer`, or a `train_op` that updates the variables. {given}"
        )
    if callable(train_op):
        takes_gradients(train_op)


def _checked_hooks(name: str, hooks: Iterable[object] | None) -> tuple[object, ...]:
    if hooks is None:
        return ()
    if not isinstance(hooks, Iterable) or isinstance(hooks, (str, Mapping)):
        raise EstimatorError(f"`{name}` is a list of hooks, got {hooks!r:.100}.")
    return tuple(hooks)


def _verb(mode: str) -> str:
    return {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "evaluate"}[mode]
