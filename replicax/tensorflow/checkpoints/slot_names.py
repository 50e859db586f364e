"""The names that TensorFlow's optimizers give to what Keras 3 keeps in lists, such as `momentums`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

# By Keras 3's class: TensorFlow's slot, Keras 3's list. Those of `tf.keras.optimizers.legacy` come first, then those
# that only `tf.compat.v1.train` has.
SLOTS: Mapping[str, Mapping[str, str]] = {
    "Adam": {"m": "momentums", "v": "velocities", "vhat": "velocity_hats"},
    "AdamW": {"m": "momentums", "v": "velocities", "vhat": "velocity_hats"},
    "Nadam": {"m": "momentums", "v": "velocities"},
    "Adamax": {"m": "m", "v": "u"},
    "Lion": {"m": "momentums"},
    "SGD": {"momentum": "momentums"},
    "RMSprop": {"rms": "velocities", "momentum": "momentums", "mg": "average_gradients"},
    "Adagrad": {"accumulator": "accumulators"},
    "Adadelta": {
        "accum_grad": "accumulated_grads",
        "accum_var": "accumulated_delta_vars",
        "accum": "accumulated_grads",
        "accum_update": "accumulated_delta_vars",
    },
    "Ftrl": {"accumulator": "accumulators", "linear": "linears", "accum": "accumulators"},
}

# By Keras 3's class: the slots of `tf.compat.v1.train`, in the order in which it numbers them behind its name. RMSProp
# has the one in the middle only if it is centered.
SAVER_SLOTS: Mapping[str, Sequence[Sequence[str]]] = {
    "Adam": (("m", "v"),),
    "SGD": (("momentum",),),
    "RMSprop": (("rms", "momentum"), ("rms", "mg", "momentum")),
    "Adagrad": (("accumulator",),),
    "Adadelta": (("accum", "accum_update"),),
    "Ftrl": (("accum", "linear"),),
}
HYPERPARAMETERS = ("beta_1", "beta_2", "rho", "momentum", "initial_accumulator_value", "learning_rate_power")
CONFIGURED = (
    *HYPERPARAMETERS, "epsilon", "amsgrad", "nesterov", "centered", "beta", "l1_regularization_strength",
    "l2_regularization_strength", "l2_shrinkage_regularization_strength", "weight_decay", "clipnorm", "clipvalue",
    "global_clipnorm", "use_ema",
)  # fmt: skip
REGULARIZATION = {
    "l1_regularization_strength": "l1_regularization_strength",
    "l2_regularization_strength": "l2_regularization_strength",
    "beta": "beta",
    "learning_rate_power": "learning_rate_power",
}


def classes_in(parts: Iterable[str]) -> set[str]:
    """Returns Keras 3's classes that these parts of variables' names say, such as `"adam"` or `"Adam_1"`."""
    known = {name.lower(): name for name in SLOTS}
    bare = {part.lower().replace("_", "").rstrip("0123456789") for part in parts}
    return {known[each] for each in bare if each in known}
