"""Names without a rule of their own: what to take in their place, by name and by module."""

from __future__ import annotations

from replicax.tensorflow.codemod.rules import Refuse, Rule


def _all(module: str, names: str, reason: str) -> dict[str, Rule]:
    return {f"{module}.{name}": Refuse(reason) for name in names.split()}


_OPS = "Look in keras.ops, jax.numpy and jax.lax for its counterpart, and compare the numbers."
_GRADIENTS = "JAX has it as a transformation of functions: jax.custom_vjp, jax.grad, jax.hessian, jax.checkpoint."
_GRAPHS = "There is no graph: write it as a function, and compile it with rx.function."
_DEVICES = "A strategy takes `devices`, and jax.devices() lists them."
_ORDER = "Values are computed in the order in which they depend on each other: leave it out."
_FILES = "Read files in Python, before their values become arrays; Grain reads and decodes records."
_EXAMPLES = (
    "It is a record of TensorFlow's files: `rx.data.read_tfrecord`, `parse_example` and `write_tfrecord` read and "
    "write them, one record at a time."
)
_READERS = "`rx.checkpoint.tensorflow.open_checkpoint(path)` lists and reads the variables of TensorFlow's checkpoints."
_SCATTER = "Take `x.at[index].add(values)` of jax.numpy (or min, max, multiply, get, set)."
_TYPES = "JAX has no types of tensors to describe or extend: take jax.ShapeDtypeStruct, and pytrees of arrays."
_LIBRARIES = "Operations in C++ are bound to TensorFlow: JAX has jax.ffi for its own."

PREFIXES: dict[str, Rule] = {
    **_all("tf", "custom_gradient grad_pass_through gradients hessians recompute_grad RegisterGradient", _GRADIENTS),
    **_all("tf", "no_gradient UnconnectedGradients AggregationMethod", _GRADIENTS),
    **_all("tf", "Graph Operation init_scope import_graph_def executing_eagerly inside_function", _GRAPHS),
    **_all("tf", "variable_creator_scope variable_scope get_variable graph_util global_variables_initializer", _GRAPHS),
    **_all("tf", "device DeviceSpec", _DEVICES),
    **_all("tf", "control_dependencies group no_op tuple CriticalSection", _ORDER),
    **_all("tf", "tensor_scatter_nd_add tensor_scatter_nd_sub tensor_scatter_nd_min tensor_scatter_nd_max", _SCATTER),
    **_all("tf", "TensorSpec TypeSpec IndexedSlicesSpec OptionalSpec TensorArraySpec VariableSpec", _TYPES),
    **_all("tf", "type_spec_from_value register_tensor_conversion_function DType as_dtype", _TYPES),
    **_all("tf", "load_library load_op_library", _LIBRARIES),
    **_all("tf", "as_string edit_distance", "JAX has no strings. Work on strings in Python or NumPy."),
    "tf.TensorShape": Refuse("A shape is a tuple of numbers, such as `x.shape`."),
    "tf.ensure_shape": Refuse("Shapes are known here: check it with an `assert`, or leave it out."),
    "tf.get_static_value": Refuse("Shapes are known here, and values are not while a function is traced."),
    "tf.TensorArray": Refuse("Stack what jax.lax.scan gives, or set rows of an array: `x = x.at[i].set(row)`."),
    "tf.timestamp": Refuse("Take Python's `time.time()`, outside of compiled functions."),
    "tf.get_logger": Refuse("Take Python's `logging`: replicax and JAX log with it."),
    "tf.math.confusion_matrix": Refuse("Count it: `jnp.zeros((n, n), int).at[labels, predictions].add(1)`."),
    "tf.train.ExponentialMovingAverage": Refuse("Give Keras's optimizers `use_ema=True`, or take optax.ema."),
    **_all("tf.train", "load_checkpoint load_variable list_variables checkpoints_iterator", _READERS),
    **_all("tf.train", "get_checkpoint_state", "rx.latest_checkpoint and rx.CheckpointManager say what there is."),
    **_all("tf", "math linalg nn bitwise sets dtypes quantization", _OPS),
    **_all("tf", "autodiff", _GRADIENTS),
    **_all("tf", "graph_util autograph queue", _GRAPHS),
    **_all("tf", "io audio", _FILES),
    **_all("tf.io", "parse_example parse_single_example FixedLenFeature VarLenFeature RaggedFeature", _EXAMPLES),
    **_all("tf.io", "TFRecordWriter TFRecordOptions FixedLenSequenceFeature parse_sequence_example", _EXAMPLES),
    **_all("tf.train", "Example Feature Features FeatureList FeatureLists SequenceExample", _EXAMPLES),
    **_all("tf.train", "BytesList FloatList Int64List", _EXAMPLES),
    **_all("tf", "RaggedTensorSpec", "JAX has no ragged tensors. Pad the rows to one length, with a mask."),
    **_all("tf", "SparseTensorSpec", "It works on sparse tensors: use jax.experimental.sparse, or dense tensors."),
    "tf.config": Refuse("JAX has settings of its own, `jax.config` and XLA_FLAGS, and replicax has rx.config."),
    "tf.train": Refuse(
        "It belongs to TensorFlow's sessions, checkpoints and servers: see rx.Checkpoint and replicax run."
    ),
    "tf.Tensor": Refuse("Tensors are JAX's arrays: see the methods of jax.Array."),
    "tf.nest": Refuse("Trees of values are JAX's pytrees: see jax.tree."),
    **_all("tf", "experimental types", _TYPES),
    "tf.experimental.numpy": Refuse(
        "Take jax.numpy, which has the same functions, and 32 bits where TensorFlow has 64."
    ),
    "tf.tpu": Refuse("rx.TPUStrategy trains on TPUs, and the guide for large tables says what shards them."),
    **_all("tf", "xla mlir sysconfig", "It belongs to TensorFlow's own build and compiler: leave it out."),
    "tf.version": Refuse("A decision by TensorFlow's version has to be decided by hand."),
    "tf.estimator": Refuse("rx.estimator has estimators with model functions, and their hooks and exporters."),
}
