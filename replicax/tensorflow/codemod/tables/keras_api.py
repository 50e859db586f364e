"""Keras 2 to Keras 3: names that are gone or have moved, keywords, methods of models, callbacks."""

from __future__ import annotations

from replicax.tensorflow.codemod import saved_files
from replicax.tensorflow.codemod.rules import Call, Code, Refuse, Rename, Rewrite, Rule
from replicax.tensorflow.codemod.tensors import backend_value, built
from replicax.tensorflow.names import Keyword

_K = "tf.keras"
_MODEL = "tf.keras.Model"
_OPTIMIZER = "tf.keras.optimizers.Optimizer"


def _gone(prefix: str, names: str, reason: str) -> dict[str, Rule]:
    return {f"{_K}.{prefix}{name}": Refuse(reason) for name in names.split()}


def _moved(source: str, target: str, names: str, note: str = "") -> dict[str, Rule]:
    return {f"{_K}.{source}.{name}": Rename(f"keras.{target}.{name}", note) for name in names.split()}


def _dropped(*names: str) -> dict[str, Keyword]:
    return {name: Keyword("", "It has no effect in Keras 3.", None) for name in names}


def _only(name: str, note: str, *accepted: object) -> dict[str, Keyword]:
    return {name: Keyword("", note, accepted)}


_OPTIMIZERS = "Adadelta Adagrad Adam Adamax Ftrl Nadam RMSprop SGD"
_DECAY = "Give `learning_rate=keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)`."
_ROOT = "It adds epsilon inside of the square root now: where gradients are tiny, the first digits may differ."
_PREPROCESSING = (
    "CategoryEncoding CenterCrop Discretization HashedCrossing Hashing IntegerLookup Normalization RandomContrast"
)
_PREPROCESSING += " RandomCrop RandomFlip RandomRotation RandomTranslation RandomZoom Rescaling Resizing StringLookup"
_PREPROCESSING += " TextVectorization"
_SHORT = "mae:mean_absolute_error mse:mean_squared_error logcosh:log_cosh"
_SHORT += " mape:mean_absolute_percentage_error"  # codespell:ignore mape
_SHORT += " msle:mean_squared_logarithmic_error kld:kl_divergence kullback_leibler_divergence:kl_divergence"
_BACKEND = (
    "abs all any arange argmax argmin batch_dot batch_flatten batch_get_value batch_normalization batch_set_value"
)
_BACKEND += (
    " bias_add binary_crossentropy cast cast_to_floatx categorical_crossentropy clip concatenate constant conv1d"
)
_BACKEND += (
    " conv2d conv2d_transpose conv3d cos count_params ctc_batch_cost ctc_decode cumprod cumsum dot dropout dtype elu"
)
_BACKEND += " equal eval exp expand_dims eye flatten foldl foldr function gather gradients greater greater_equal"
_BACKEND += " hard_sigmoid in_test_phase in_top_k in_train_phase int_shape is_sparse l2_normalize learning_phase"
_BACKEND += " learning_phase_scope less less_equal log map_fn max maximum mean min minimum moving_average_update ndim"
_BACKEND += (
    " not_equal one_hot ones ones_like permute_dimensions placeholder pool2d pow print_tensor prod random_normal"
)
_BACKEND += (
    " random_uniform relu repeat repeat_elements reshape resize_images reverse rnn round set_learning_phase set_value"
)
_BACKEND += (
    " shape sigmoid sign sin softmax softplus softsign sparse_categorical_crossentropy sqrt square squeeze stack std"
)
_BACKEND += (
    " stop_gradient sum switch tanh tile to_dense transpose truncated_normal update update_add update_sub var variable"
)
_BACKEND += " zeros zeros_like"

_LEGACY_NOTES = {"RMSprop": _ROOT, "Adagrad": _ROOT, "Adadelta": _ROOT, "Ftrl": _ROOT, "Nadam": _ROOT}


def _optimizers() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for name in f"{_OPTIMIZERS} AdamW Adafactor Lion".split():
        keywords = {"lr": Keyword("learning_rate"), **_only("decay", _DECAY, 0, 0.0, None), **_dropped("jit_compile")}
        for module in ("", ".legacy", ".experimental"):
            note = _LEGACY_NOTES.get(name, "") if module == ".legacy" else ""
            rules[f"{_K}.optimizers{module}.{name}"] = Call(f"keras.optimizers.{name}", keywords, note=note)
    return rules


def _lower_names() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for pair in _SHORT.split():
        short, _, name = pair.partition(":")
        for module in ("losses", "metrics"):
            rules[f"{_K}.{module}.{short}"] = Rename(f"keras.{module}.{name}")
            rules[f"{_K}.{module}.{short.upper()}"] = Rename(f"keras.{module}.{name}")
    return rules


_REDUCTIONS = {
    "NONE": "none",
    "SUM": "sum",
    "SUM_OVER_BATCH_SIZE": "sum_over_batch_size",
    "AUTO": "sum_over_batch_size",
}
_BACKUP = Call(
    "replicax.keras.BackupAndRestore",
    {
        "backup_dir": Keyword("directory"),
        **_only("save_before_preemption", "Use rx.PreemptionCheckpointHandler.", False),
    },
)
_TENSORBOARD = {
    **_dropped("write_graph", "write_images"),
    **_only("embeddings_freq", "Embeddings are not written.", 0, None),
    **_only("embeddings_metadata", "Embeddings are not written.", None),
}
_FIT = _dropped("workers", "use_multiprocessing", "max_queue_size")
_COMPILE = {
    "experimental_steps_per_execution": Keyword("steps_per_execution"),
    **_dropped("experimental_run_tf_function"),
    **_only("distribute", "The model remembers the strategy in whose scope it was made.", None),
    **_only("sample_weight_mode", "Keras 3 takes weights of the shape of the loss.", None),
    **_only("target_tensors", "It belongs to TensorFlow 1's graphs.", None),
}

_SEED = Rename(
    "keras.utils.set_random_seed",
    "It seeds Python's and NumPy's numbers too; initial weights differ from TensorFlow's.",
)

_DRAWS = "The numbers differ, and an initializer of Keras 3 draws the same ones at each call; give each a seed."
_INITIALIZERS = "zeros:Zeros ones:Ones constant:Constant random_normal:RandomNormal random_uniform:RandomUniform"

RULES: dict[str, Rule] = {
    **{
        f"tf.{old}_initializer": Rename(f"keras.initializers.{new}", _DRAWS if old.startswith("random") else "")
        for old, _, new in (pair.partition(":") for pair in _INITIALIZERS.split())
    },
    "tf.name_scope": Rename("keras.name_scope"),
    "tf.compat.v1.train.latest_checkpoint": Rename("replicax.latest_checkpoint"),
    **_optimizers(),
    **_lower_names(),
    **_moved("layers.experimental.preprocessing", "layers", _PREPROCESSING),
    **_moved("layers.experimental", "layers", "EinsumDense"),
    **_moved("experimental", "optimizers.schedules", "CosineDecay CosineDecayRestarts"),
    **{f"{_K}.losses.Reduction.{name}": Code(f'"{value}"') for name, value in _REDUCTIONS.items()},
    **_gone("backend.", _BACKEND, "Keras 3 has no functions of tensors in its backend: take that of keras.ops."),
    **_gone(
        "layers.",
        "AbstractRNNCell DenseFeatures LocallyConnected1D LocallyConnected2D RandomHeight RandomWidth",
        "Keras 3 has no such layer.",
    ),
    **_gone("layers.", "CuDNNLSTM CuDNNGRU ThresholdedReLU", "Keras 3 has no such layer: take LSTM, GRU, ReLU."),
    f"{_K}.layers.experimental.SyncBatchNormalization": Refuse("Take BatchNormalization(synchronized=True)."),
    **_gone("metrics.", "MeanRelativeError MeanTensor", "Keras 3 has no such metric."),
    **_gone("models.", "model_from_config model_from_yaml", "Take keras.models.model_from_json."),
    **_gone("callbacks.", "BaseLogger SidecarEvaluatorModelExport", "Keras 3 has no such callback."),
    **_gone("constraints.", "RadialConstraint radial_constraint", "Keras 3 has no such constraint."),
    **_gone(
        "preprocessing.image.",
        "ImageDataGenerator DirectoryIterator NumpyArrayIterator random_rotation",
        "Take keras.utils.image_dataset_from_directory, and layers for augmentation.",
    ),
    **_gone(
        "preprocessing.text.",
        "Tokenizer hashing_trick one_hot text_to_word_sequence tokenizer_from_json",
        "Take keras.layers.TextVectorization.",
    ),
    **_gone(
        "preprocessing.sequence.",
        "TimeseriesGenerator make_sampling_table skipgrams",
        "Take keras.utils.timeseries_dataset_from_array.",
    ),
    **_gone(
        "utils.",
        "GeneratorEnqueuer OrderedEnqueuer SequenceEnqueuer multi_gpu_model to_ordinal",
        "Take keras.utils.PyDataset for data, and a strategy for several devices.",
    ),
    f"{_K}.utils.Sequence": Rename("keras.utils.PyDataset"),
    f"{_K}.backend.get_value": Rewrite(backend_value),
    f"{_K}.experimental.SidecarEvaluator": Rename("replicax.keras.SidecarEvaluator"),
    f"{_K}.utils.SidecarEvaluator": Rename("replicax.keras.SidecarEvaluator"),
    f"{_K}.callbacks.TensorBoard": Call(
        "replicax.keras.TensorBoard",
        _TENSORBOARD,
        ("log_dir", "histogram_freq", "write_graph", "write_images"),
    ),
    f"{_K}.callbacks.BackupAndRestore": _BACKUP,
    f"{_K}.callbacks.experimental.BackupAndRestore": _BACKUP,
    f"{_K}.callbacks.ModelCheckpoint": Rewrite(saved_files.model_checkpoint),
    f"{_K}.models.load_model": Rewrite(saved_files.load_model),
    f"{_K}.layers.InputLayer": Call("keras.layers.InputLayer", {"input_shape": Keyword("shape")}),
    f"{_K}.layers.Embedding": Call("keras.layers.Embedding", _dropped("input_length", "sparse")),
    f"{_K}.layers.LeakyReLU": Call("keras.layers.LeakyReLU", {"alpha": Keyword("negative_slope")}),
    f"{_K}.mixed_precision.experimental.set_policy": Rename("keras.mixed_precision.set_global_policy"),
    f"{_K}.mixed_precision.experimental.Policy": Rename("keras.mixed_precision.Policy"),
    "tf.random.set_seed": _SEED,
    "tf.set_random_seed": _SEED,
}

PREFIXES: dict[str, str | Rule] = {
    "tf.initializers": "keras.initializers",
    f"{_K}.experimental": Refuse("Keras 3 has no such name."),
    f"{_K}.layers.experimental": Refuse("Keras 3 has no such layer."),
    f"{_K}.wrappers.scikit_learn": Refuse("Take the wrappers of keras.wrappers, or scikeras."),
    f"{_K}.dtensor": Refuse("Use rx.LayoutStrategy."),
    f"{_K}.backend.experimental": Refuse("Keras 3 has no such name."),
}

_METRIC_NAMES = Refuse(
    "Keras 3 names all compiled metrics together: `model.evaluate(..., return_dict=True)` has their names."
)
METHODS: dict[tuple[str, str], Rule] = {
    (_MODEL, "save"): Rewrite(saved_files.save),
    (_MODEL, "save_weights"): Rewrite(saved_files.save_weights),
    (_MODEL, "load_weights"): Rewrite(saved_files.load_weights),
    **{(_MODEL, name): Call(name, _FIT) for name in ("fit", "evaluate", "predict")},
    **{(_MODEL, f"{name}_generator"): Call(name, _FIT) for name in ("fit", "evaluate", "predict")},
    (_MODEL, "compile"): Call("compile", _COMPILE),
    (_MODEL, "build"): Rewrite(built),
    (_MODEL, "metrics_names"): _METRIC_NAMES,
    (_MODEL, "add_metric"): Refuse(
        "Keep a keras.metrics.Metric as an attribute, and update it in `call` or `train_step`."
    ),
    (_MODEL, "reset_states"): Refuse("Reset the states of the layers: `layer.reset_state()`."),
    (_OPTIMIZER, "lr"): Rename("learning_rate"),
    (_OPTIMIZER, "get_updates"): Refuse("Use rx.value_and_grad and `optimizer.apply`."),
    (_OPTIMIZER, "minimize"): Refuse("Use rx.value_and_grad and `optimizer.apply`."),
    ("tf.keras.metrics.Metric", "reset_states"): Rename("reset_state"),
}

_MODELS = f"{_K}.Model {_K}.Sequential {_K}.models.Model {_K}.models.Sequential {_K}.models.load_model"
_MODELS += f" {_K}.models.clone_model {_K}.models.model_from_json"
_METRICS = (
    "AUC Accuracy BinaryAccuracy CategoricalAccuracy FalseNegatives FalsePositives Mean MeanAbsoluteError MeanIoU"
)
_METRICS += " MeanSquaredError Metric Precision Recall RootMeanSquaredError SparseCategoricalAccuracy"
_METRICS += " SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy Sum TopKCategoricalAccuracy TrueNegatives"
_METRICS += " TruePositives CategoricalCrossentropy BinaryCrossentropy CosineSimilarity KLDivergence"
_LOSSES = (
    "BinaryCrossentropy CategoricalCrossentropy CategoricalHinge CosineSimilarity Hinge Huber KLDivergence LogCosh"
)
_LOSSES += " Loss MeanAbsoluteError MeanSquaredError Poisson SparseCategoricalCrossentropy SquaredHinge Reduction.NONE"
_LOSSES += " Reduction.SUM Reduction.SUM_OVER_BATCH_SIZE"

#: `tf.metrics`, `tf.losses` and `tf.optimizers` are Keras's in TensorFlow 2; in TensorFlow 1 they had other functions.
for _module, _names in (("metrics", _METRICS), ("losses", _LOSSES), ("optimizers", f"{_OPTIMIZERS} Optimizer")):
    for _name in _names.split():
        _same = RULES.get(f"{_K}.{_module}.{_name}", Rename(f"keras.{_module}.{_name}"))
        RULES[f"tf.{_module}.{_name}"] = _same

RESULTS = {
    **dict.fromkeys(_MODELS.split(), _MODEL),
    f"{_K}.applications.": _MODEL,
    **{f"{_K}.metrics.{name}": f"{_K}.metrics.Metric" for name in _METRICS.split()},
    **{f"tf.metrics.{name}": f"{_K}.metrics.Metric" for name in _METRICS.split()},
    f"{_K}.optimizers.": _OPTIMIZER,
    f"{_K}.losses.": f"{_K}.losses.Loss",
}
MEMBERS = {
    (_MODEL, "optimizer"): _OPTIMIZER,
    (_MODEL, "__call__"): "tf.Tensor",
    (f"{_K}.metrics.Metric", "result"): "tf.Tensor",
    (f"{_K}.losses.Loss", "__call__"): "tf.Tensor",
    (_OPTIMIZER, "lr"): "tf.Variable",
    (_OPTIMIZER, "learning_rate"): "tf.Variable",
}
