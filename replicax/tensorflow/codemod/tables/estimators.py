"""Rules for scripts of `tf.estimator`, and for what TensorFlow 1's model functions are written with."""

from __future__ import annotations

from replicax.tensorflow.codemod.op_row import OpRow
from replicax.tensorflow.codemod.rules import Call, Drop, Refuse, Rename, Rewrite, Rule
from replicax.tensorflow.codemod.tensors import by_row
from replicax.tensorflow.names import Keyword

_E = "tf.estimator"
_L = "tf.compat.v1.layers"
_SCOPES = {name: Keyword("", "Keras 3 has no variable scopes.", (None,)) for name in ("_reuse", "_scope", "reuse")}
_CANNED = Refuse(
    "There are no canned estimators: write the model in Keras, and `rx.estimator.model_to_estimator(model)` or a model "
    "function makes an estimator of it."
)
_COLUMNS = Refuse("Feature columns become Keras's preprocessing layers, or keras.utils.FeatureSpace.")
_TPU = Refuse("rx.estimator.Estimator with `train_distribute=rx.TPUStrategy()` trains on TPUs.")
_SESSION = Refuse("There are no sessions and no graph: write it as a function, and compile it with rx.function.")
_LOG = Refuse(
    "It logs tensors by their names in a graph: rx.estimator.LoggingTensorHook logs the loss and metrics by name."
)

#: Losses of TensorFlow 1: the mean over all rows, since all weights are one.
LOSSES = (
    OpRow(
        "compat.v1.losses.mean_squared_error(labels, predictions, weights=1.0)",
        "keras.ops.mean(keras.ops.square(keras.ops.subtract(predictions, labels)))",
    ),
    OpRow(
        "compat.v1.losses.absolute_difference(labels, predictions, weights=1.0)",
        "keras.ops.mean(keras.ops.abs(keras.ops.subtract(predictions, labels)))",
    ),
    OpRow(
        "compat.v1.losses.softmax_cross_entropy(onehot_labels, logits, weights=1.0, label_smoothing=0)",
        "keras.ops.mean(keras.ops.categorical_crossentropy(onehot_labels, logits, from_logits=True))",
    ),
    OpRow(
        "compat.v1.losses.sparse_softmax_cross_entropy(labels, logits, weights=1.0)",
        "keras.ops.mean(keras.ops.sparse_categorical_crossentropy(labels, logits, from_logits=True))",
    ),
    OpRow(
        "compat.v1.losses.sigmoid_cross_entropy(multi_class_labels, logits, weights=1.0, label_smoothing=0)",
        "keras.ops.mean(keras.ops.binary_crossentropy(multi_class_labels, logits, from_logits=True))",
    ),
)
#: Optimizers of TensorFlow 1, with the defaults and the epsilon that they have there.
OPTIMIZERS = (
    OpRow(
        "compat.v1.train.GradientDescentOptimizer(learning_rate, use_locking=False)",
        "keras.optimizers.SGD(learning_rate)",
    ),
    OpRow(
        "compat.v1.train.MomentumOptimizer(learning_rate, momentum, use_locking=False, name=None, use_nesterov=False)",
        "keras.optimizers.SGD(learning_rate, momentum=momentum)",
    ),
    OpRow(
        "compat.v1.train.AdagradOptimizer(learning_rate, initial_accumulator_value=0.1, use_locking=False)",
        "keras.optimizers.Adagrad(learning_rate, initial_accumulator_value=initial_accumulator_value, epsilon=0.0)",
    ),
    OpRow(
        "compat.v1.train.AdamOptimizer(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, use_locking=False)",
        "keras.optimizers.Adam(learning_rate, beta_1=beta1, beta_2=beta2, epsilon=epsilon)",
        always=("epsilon",),
    ),
)
ROWS = (*LOSSES, *OPTIMIZERS)

_LAYERS = "Dense Conv1D Conv2D Conv3D Flatten MaxPooling1D MaxPooling2D AveragePooling1D AveragePooling2D"
_SAME = ("TRAIN", "EVAL", "PREDICT")
_HOOKS = "stop_if_higher_hook stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook"
_CANNED_NAMES = (
    "DNNClassifier DNNRegressor LinearClassifier LinearRegressor DNNLinearCombinedClassifier BaselineClassifier"
)
_CANNED_NAMES += " DNNLinearCombinedRegressor BaselineRegressor BoostedTreesClassifier BoostedTreesRegressor"


def _everywhere(name: str, rule: Rule) -> dict[str, Rule]:
    """Returns a rule for a name of `tf.train`, where TensorFlow 1, its copy in TensorFlow 2 and Estimator have it."""
    return {f"{module}.{name}": rule for module in ("tf.train", "tf.compat.v1.train", _E, f"tf.compat.v1.{_E[3:]}")}


def _hook_rules() -> dict[str, Rule]:
    rules = {**_everywhere("SessionRunHook", Rename("replicax.estimator.Hook"))}
    rules |= _everywhere("StopAtStepHook", Rename("replicax.estimator.StopAtStepHook"))
    rules |= _everywhere("LoggingTensorHook", _LOG)
    for module in (f"{_E}.experimental", "tf.compat.v1.estimator.experimental"):
        for name in f"make_early_stopping_hook {_HOOKS}".split():
            rules[f"{module}.{name}"] = Rename(f"replicax.estimator.{name}")
    return rules


_MODES = "enable_eager_execution disable_eager_execution enable_v2_behavior disable_v2_behavior"
_MODES += " enable_v2_tensorshape disable_v2_tensorshape enable_control_flow_v2 disable_control_flow_v2"
_MODES += " enable_resource_variables"
_MODE = Drop("Programs are traced and compiled by rx.function and by estimators; there is no other mode.")

RULES: dict[str, Rule] = {
    **{f"{module}.{name}": _MODE for name in _MODES.split() for module in ("tf", "tf.compat.v1")},
    **{row.name: Rewrite(by_row(row)) for row in ROWS},
    **{row.name.replace("compat.v1.", ""): Rewrite(by_row(row)) for row in OPTIMIZERS},
    **{f"{_L}.{name}": Call(f"keras.layers.{name}", _SCOPES) for name in _LAYERS.split()},
    f"{_L}.BatchNormalization": Refuse(
        "Its updates are operations of a graph there: take keras.layers.BatchNormalization."
    ),
    f"{_L}.Dropout": Call("keras.layers.Dropout", _SCOPES, ("rate",)),
    **{f"{_E}.ModeKeys.{name}": Rename(f"replicax.estimator.ModeKeys.{name}") for name in _SAME},
    **{f"tf.compat.v1.estimator.ModeKeys.{name}": Rename(f"replicax.estimator.ModeKeys.{name}") for name in _SAME},
    **_hook_rules(),
    **{f"{module}.{name}": _CANNED for name in _CANNED_NAMES.split() for module in (_E, "tf.compat.v1.estimator")},
    "tf.Session": _SESSION,
    "tf.compat.v1.Session": _SESSION,
    "tf.placeholder": _SESSION,
    "tf.compat.v1.placeholder": _SESSION,
}
PREFIXES: dict[str, str | Rule] = {
    "tf.feature_column": _COLUMNS,
    "tf.compat.v1.feature_column": _COLUMNS,
    f"{_E}.tpu": _TPU,
    "tf.compat.v1.estimator.tpu": _TPU,
    "tf.compat.v1.estimator.inputs": Refuse("An input function returns an iterable of batches (features, labels)."),
    f"{_E}.inputs": Refuse("An input function returns an iterable of batches (features, labels)."),
}
RESULTS = {
    **{row.name: "tf.Tensor" for row in LOSSES},
    **{row.name: "tf.keras.optimizers.Optimizer" for row in OPTIMIZERS},
    **{row.name.replace("compat.v1.", ""): "tf.keras.optimizers.Optimizer" for row in OPTIMIZERS},
}
