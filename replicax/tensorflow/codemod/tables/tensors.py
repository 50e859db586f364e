"""Rules for tensors: the functions of the op tables with their aliases, dtypes, constants, shapes and methods."""

from __future__ import annotations

from replicax.tensorflow.codemod import tensors
from replicax.tensorflow.codemod.notes import WIDE, WIDE_DTYPES
from replicax.tensorflow.codemod.op_row import OpRow
from replicax.tensorflow.codemod.rules import Call, Code, Refuse, Rename, Rewrite, Rule
from replicax.tensorflow.codemod.tables import array_ops, math_ops, nn_ops
from replicax.tensorflow.names import Keyword

ROWS: tuple[OpRow, ...] = (*math_ops.OPS, *array_ops.OPS, *nn_ops.OPS)

#: Modules in which functions stand a second time: their names there, or `there:here`, and where they are in the rows.
ALIASES = (
    (
        "tf.math",
        "tf",
        "abs acos acosh add add_n argmax argmin asin asinh atan atan2 atanh cos cosh cumsum divide equal",
    ),
    ("tf.math", "tf", "exp floor greater greater_equal less less_equal logical_and logical_not logical_or maximum"),
    ("tf.math", "tf", "minimum multiply negative not_equal pow reduce_all reduce_any reduce_logsumexp reduce_max"),
    ("tf.math", "tf", "reduce_mean reduce_min reduce_prod reduce_sum round scalar_mul sign sin sinh sqrt square"),
    ("tf.math", "tf", "subtract tan tanh truediv"),
    ("tf.nn", "tf", "sigmoid tanh"),
    ("tf.math", "tf.nn", "log_softmax softmax softsign zero_fraction"),
    ("tf.nn", "tf.math", "in_top_k l2_normalize softplus top_k"),
    ("tf.dtypes", "tf", "cast saturate_cast"),
    ("tf.math", "tf.math", "mod:floormod"),
    ("tf.linalg", "tf", "einsum eye matmul norm tensordot"),
    ("tf.linalg", "tf.math", "l2_normalize"),
)

#: Activations that are given to layers: those of `keras.activations` are saved with a model by name.
ACTIVATIONS = frozenset(
    [
        "relu",
        "relu6",
        "selu",
        "elu",
        "gelu",
        "leaky_relu",
        "silu",
        "softmax",
        "log_softmax",
        "sigmoid",
        "tanh",
        "softplus",
        "softsign",
        "exponential",
    ]
)

_DTYPES = "bool uint8 uint16 uint32 int8 int16 int32 float16 bfloat16 float32 complex64"


def _mention(row: OpRow) -> Rename | None:
    """Returns what becomes of a function that is not called: another function with the same parameters in order."""
    name = row.name.rpartition(".")[2]
    if name in ACTIVATIONS:
        return Rename(f"keras.activations.{name}")
    target, _, arguments = row.template.partition("(")
    same = row.signature.partition("(")[2].split(", ")[0] == arguments
    return Rename(target) if same and not (row.always or row.adapt or row.note) else None


def _row_rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {row.name: Rewrite(tensors.by_row(row), _mention(row)) for row in ROWS}
    for module, home, names in ALIASES:
        for pair in names.split():
            alias, _, name = pair.partition(":")
            rules[f"{module}.{alias}"] = rules[f"{home}.{name or alias}"]
    return rules


def _dtype_rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    names = {name: name for name in (*_DTYPES.split(), *WIDE_DTYPES)} | {"half": "float16", "double": "float64"}
    for old, name in names.items():
        note = WIDE if name in WIDE_DTYPES else ""
        for prefix in ("tf", "tf.dtypes"):
            rules[f"{prefix}.{old}"] = Code(f'"{name}"', note)
            rules[f"{prefix}.{old}.name"] = Code(f'"{name}"')
            rules[f"{prefix}.{old}.as_numpy_dtype"] = Code(f'np.dtype("{name}")')
            if name.startswith(("int", "uint", "float")):
                info = "iinfo" if "int" in name else "finfo"
                rules |= {f"{prefix}.{old}.{end}": Code(f'np.{info}("{name}").{end}') for end in ("min", "max")}
    return rules


_NAME = {"name": Keyword("", "Operations have no names.", None)}
_STRINGS = Refuse("JAX has no strings. Work on strings in Python or NumPy, before they become numbers.")
_PAIRS = Refuse(
    "Keras has complex numbers as pairs (real, imag): write it with jax.numpy.fft, or keras.ops.fft and stft."
)
_RAGGED = Refuse("JAX has no ragged tensors. Pad the rows to one length, with a mask.")
_SPARSE = Refuse("It works on sparse tensors: use jax.experimental.sparse, or dense tensors.")
_DYNAMIC = Refuse("The shape of its result depends on values, and XLA compiles for fixed shapes. Use a mask, or NumPy.")
_ASSERTS = Refuse(
    "In a compiled step values are not known. Check in Python outside of it, or use jax.experimental.checkify."
)

PREFIXES: dict[str, str | Refuse] = {
    "tf.strings": _STRINGS,
    "tf.signal": _PAIRS,
    "tf.ragged": _RAGGED,
    "tf.RaggedTensor": _RAGGED,
    "tf.sparse": _SPARSE,
    "tf.SparseTensor": _SPARSE,
    "tf.lookup": Refuse("It holds strings or ids of a vocabulary: use keras.layers.StringLookup, or a dict of Python."),
    "tf.debugging": _ASSERTS,
    "tf.raw_ops": Refuse(
        "Raw operations have no counterpart: use the function of keras.ops or jax.numpy that they serve."
    ),
    "tf.image": Refuse(
        "Keras has no function with the same numbers: see keras.ops.image, and keras.layers for augmentation."
    ),
    "tf.errors": Refuse("replicax and JAX raise errors of their own: see replicax.errors."),
    "tf.summary": Refuse(
        "`tensorboardX.SummaryWriter(log_dir).add_scalar(name, value, step)` writes for TensorBoard, outside of "
        "compiled steps; for `fit` there is rx.keras.TensorBoard."
    ),
    "tf.app": Refuse("Take absl: `absl.app.run(main)`, and `absl.flags` for flags."),
    "tf.flags": Refuse("Take absl: `absl.flags`."),
    "tf.logging": Refuse("Take Python's `logging`, or `absl.logging`."),
    "tf.contrib": Refuse("`tf.contrib` ended with TensorFlow 1: write the script for TensorFlow 2 first."),
    "tf.test": Refuse("Take pytest, and numpy.testing to compare."),
    "tf.profiler": Refuse("jax.profiler.trace(log_dir) writes profiles for TensorBoard."),
    "tf.lite": Refuse("There is no converter to TensorFlow Lite: see ai-edge and jax2tf."),
}

_ROW = {row.name: row for row in ROWS}

RULES: dict[str, Rule] = {
    **_row_rules(),
    **_dtype_rules(),
    "tf.newaxis": Code("None"),
    **{f"tf.image.ResizeMethod.{name.upper()}": Code(f'"{name}"') for name in ("bilinear", "bicubic", "area")},
    "tf.image.ResizeMethod.NEAREST_NEIGHBOR": Code('"nearest"'),
    "tf.string": _STRINGS,
    "tf.dtypes.string": _STRINGS,
    "tf.Tensor": Rename("jax.Array"),
    "tf.__version__": Rewrite(tensors.constant, tensors.version),
    "tf.version.VERSION": Rewrite(tensors.constant, tensors.version),
    "tf.constant": Rewrite(tensors.constant),
    "tf.convert_to_tensor": Rewrite(tensors.constant),
    "tf.zeros": Rewrite(tensors.by_row(_ROW["tf.zeros"]), Rename("keras.ops.zeros")),
    "tf.ones": Rewrite(tensors.by_row(_ROW["tf.ones"]), Rename("keras.ops.ones")),
    "tf.shape": Rewrite(tensors.shape),
    "tf.range": Rewrite(tensors.number_range),
    "tf.print": Rewrite(tensors.printed),
    "tf.nest.map_structure": Rename("jax.tree.map"),
    "tf.nest.flatten": Rename("jax.tree.leaves"),
    "tf.boolean_mask": _DYNAMIC,
    "tf.unique": _DYNAMIC,
    "tf.unique_with_counts": _DYNAMIC,
    "tf.dynamic_partition": _DYNAMIC,
    "tf.gather_nd": Refuse("Index the tensor with a tuple of arrays, one for each axis: `x[i, j]`."),
    "tf.slice": Refuse("JAX moves a slice that reaches over the end; write `x[a:b]`, or keras.ops.slice with care."),
    "tf.scan": Refuse("keras.ops.scan carries a state and stacks outputs apart: write it so."),
    "tf.numpy_function": Refuse("Use jax.pure_callback, which has to know the shape and dtype of the result."),
    "tf.py_function": Refuse("Use jax.pure_callback, which has to know the shape and dtype of the result."),
    "tf.clip_by_norm": Call("rx.keras.clip_by_norm", _NAME, ("t", "clip_norm", "axes", "name"), 3),
    "tf.clip_by_global_norm": Call(
        "rx.keras.clip_by_global_norm", _NAME, ("t_list", "clip_norm", "use_norm", "name"), 3
    ),
    "tf.linalg.global_norm": Call("rx.keras.global_norm", _NAME, ("t_list", "name"), 1),
    "tf.assert_equal": _ASSERTS,
    "tf.assert_greater": _ASSERTS,
    "tf.assert_less": _ASSERTS,
    "tf.assert_rank": _ASSERTS,
    "tf.Assert": _ASSERTS,
    "tf.nn.dropout": Refuse("Use keras.random.dropout with a keras.random.SeedGenerator: the masks differ."),
}

_NUMPY = Rewrite(tensors.as_numpy)
METHODS: dict[tuple[str, str], Rule] = {
    **{(kind, "numpy"): _NUMPY for kind in ("tf.Tensor", "tf.Variable", "PerReplica", "tf.keras.metrics.Metric")},
    ("tf.math.top_k", "values"): Rewrite(tensors.get_shape, tensors.top_k_part(0)),
    ("tf.math.top_k", "indices"): Rewrite(tensors.get_shape, tensors.top_k_part(1)),
    ("tf.Tensor", "eval"): Refuse("There are no sessions: a tensor has its value."),
    ("tf.Tensor", "get_shape"): Rewrite(tensors.get_shape),
    ("tf.Tensor", "set_shape"): Refuse("Shapes are known here: check it with an `assert`, or leave it out."),
}

UNKNOWN_METHODS: dict[str, Rule] = {
    "numpy": _NUMPY,
    "num_elements": Rewrite(tensors.num_elements),
    "as_list": Rewrite(tensors.as_list),
    "get_shape": Rewrite(tensors.get_shape),
    "rank": Rewrite(tensors.as_list, tensors.shape_rank),
    "ndims": Rewrite(tensors.as_list, tensors.shape_rank),
}

_NO_TENSORS = frozenset(
    ["cond", "while_loop", "unstack", "split", "meshgrid", "nn.moments", "math.top_k", "is_tensor", "rank", "map_fn"]
)
RESULTS = {
    **{row.name: "tf.Tensor" for row in ROWS if row.name.removeprefix("tf.") not in _NO_TENSORS},
    **{
        f"{module}.{name}": "tf.Tensor" for module, _, names in ALIASES for name in names.split() if "top_k" not in name
    },
    "tf.math.top_k": "tf.math.top_k",
    "tf.nn.top_k": "tf.math.top_k",
    "tf.constant": "tf.Tensor",
    "tf.convert_to_tensor": "tf.Tensor",
    "tf.range": "tf.Tensor",
    "tf.clip_by_norm": "tf.Tensor",
    "tf.linalg.global_norm": "tf.Tensor",
}
MEMBERS = {("tf.Tensor", name): "tf.Tensor" for name in ("T", "__call__")}
