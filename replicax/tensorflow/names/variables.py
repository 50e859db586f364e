"""TensorFlow's names: variables, checkpoints and losses."""

from __future__ import annotations

from replicax.tensorflow.names.rows import (
    Rows,
    absent,
    absent_members,
    differs,
    members,
    refused,
    renamed,
    same,
    to,
    unused,
)

_V = "tf.Variable"
_DV = "tf.experimental.dtensor.DVariable"
_K = "tf.train.Checkpoint"
_M = "tf.train.CheckpointManager"
_V1 = "It belongs to TensorFlow 1's sessions and graphs."
_ARRAY = "It returns the new value, an array, and not the variable."
_OPTIONS = refused(
    "TensorFlow's say which device writes, and whether in the background: here each process writes what its devices "
    "hold, and a manager writes in the background.",
    None,
)

VARIABLES: Rows = {
    _V: differs(
        "Variable",
        "Keras variables serve as well. Its shape is fixed.",
        validate_shape=refused("Variables have a fixed shape.", True),
        caching_device=refused("The strategy places variables.", None),
        variable_def=refused(_V1, None),
        import_scope=refused(_V1, None),
        shape=refused("The shape is the initial value's, and fixed.", None),
        experimental_enable_variable_lifting=unused("Variables are lifted out of every `rx.function`."),
    ).ordered(
        "initial_value trainable validate_shape caching_device name variable_def dtype import_scope "
        "constraint synchronization aggregation shape experimental_enable_variable_lifting"
    ),
    **members("Variable", "aggregation constraint dtype name shape synchronization trainable read_value", _V),
    f"{_V}.value": differs("Variable.value", "A property: `v.value`, not `v.value()`."),
    f"{_V}.assign": differs("Variable.assign", _ARRAY),
    f"{_V}.assign_add": differs("Variable.assign_add", _ARRAY, delta=to("value")),
    f"{_V}.assign_sub": differs("Variable.assign_sub", _ARRAY, delta=to("value")),
    **members(
        "Variable",
        "batch_scatter_update scatter_add scatter_div scatter_max scatter_min scatter_mul scatter_sub "
        "scatter_update scatter_nd_add scatter_nd_sub scatter_nd_update",
        _V,
    ),
    **members("dtensor.DVariable", "scatter_nd_max scatter_nd_min", _DV),
    f"{_V}.gather_nd": absent("Index the value: `v.value[indices]`."),
    f"{_V}.sparse_read": absent("Index the value: `v.value[indices]`; an `rx.ShardedVariable` has `sparse_read`."),
    f"{_V}.device": differs("Variable.device", "A name such as `cpu:0`; `strategy.explain([v])` tells more."),
    f"{_V}.get_shape": absent("Use `v.shape`."),
    f"{_V}.set_shape": absent("The shape is the initial value's, and fixed."),
    f"{_V}.ref": absent("Use `id(v)`, or the variable itself as a key of a dict."),
    f"{_V}.experimental_ref": absent("Use `id(v)`, or the variable itself as a key of a dict."),
    f"{_V}.load": absent("Use `v.assign(value)`."),
    f"{_V}.eval": absent("Use `v.numpy()`."),
    f"{_V}.count_up_to": absent("Count with `v.assign_add(1)`."),
    f"{_V}.initial_value": absent("A variable has its value from the beginning; keep a copy of it where you need it."),
    f"{_V}.initialized_value": absent("A variable has its value from the beginning: `v.value`."),
    f"{_V}.initializer": absent("A variable has its value from the beginning."),
    f"{_V}.SaveSliceInfo": absent("Checkpoints store global tensors, whatever their layout."),
    **absent_members("from_proto graph op to_proto", _V, _V1),
    f"{_DV}.create": absent("A variable has its value from the beginning."),
    f"{_DV}.handle": absent("A variable is one object; its value is `v.value`."),
    f"{_DV}.is_initialized": absent("A variable has its value from the beginning."),
    f"{_DV}.read_value_no_copy": renamed("dtensor.DVariable.read_value", "Arrays are immutable: nothing is copied."),
    "tf.TensorSpec": differs("TensorSpec", "Frozen data: shape, dtype and name; no methods."),
    "tf.IndexedSlices": differs("IndexedSlices", "Rows by their numbers for the scatter methods; no arithmetic."),
    "tf.VariableSynchronization": differs("VariableSynchronization", "`NONE` is refused. Its names work too."),
    **members("VariableSynchronization", "AUTO NONE ON_WRITE ON_READ", "tf.VariableSynchronization"),
    "tf.VariableAggregation": differs("VariableAggregation", "`NONE` refuses what would differ. Its names work too."),
    **members("VariableAggregation", "NONE SUM MEAN ONLY_FIRST_REPLICA", "tf.VariableAggregation"),
    # Losses.
    "tf.nn": absent("`rx.compute_average_loss` and `rx.scale_regularization_loss` stand in `replicax` itself."),
    "tf.nn.compute_average_loss": renamed("compute_average_loss"),
    "tf.nn.scale_regularization_loss": renamed("scale_regularization_loss"),
    # Checkpoints.
    "tf.train": absent("`rx.Checkpoint` and `rx.CheckpointManager` stand in `replicax` itself."),
    _K: differs(
        "Checkpoint",
        "Stores global arrays by name; restores TensorFlow's files too. Objects that are not built get their "
        "values later.",
    ),
    f"{_K}.write": differs(
        "Checkpoint.write", "To a new directory.", file_prefix=to("directory"), options=_OPTIONS
    ).ordered("file_prefix options"),
    f"{_K}.restore": differs(
        "Checkpoint.restore",
        "Names that one side lacks are an error at once, unless `partial=True`. It returns the restored values too: a "
        "dict with TensorFlow's assertions.",
        options=_OPTIONS,
    ).ordered("save_path options"),
    f"{_K}.save": same("Checkpoint.save", "", options=_OPTIONS).ordered("file_prefix options"),
    f"{_K}.read": same("Checkpoint.read", "", options=_OPTIONS).ordered("save_path options"),
    f"{_K}.save_counter": same("Checkpoint.save_counter"),
    f"{_K}.sync": absent("`manager.wait_until_finished()` waits for a save that is under way."),
    "tf.train.latest_checkpoint": differs(
        "latest_checkpoint",
        "The highest number, not the last one written.",
        latest_filename=refused("No file says which is the latest: the folder is looked into.", None),
    ).ordered("checkpoint_dir latest_filename"),
    _M: differs(
        "CheckpointManager",
        "Other order of parameters: behind `max_to_keep` by keyword. It saves in the background. Checkpoints are "
        "called by a number of eight digits, unless there is a `checkpoint_name`.",
        last_checkpoint_step=refused("It reads the directory.", None),
    ),
    f"{_M}.save": differs(
        "CheckpointManager.save",
        "A number that was saved before is not saved again. It returns before the checkpoint is written.",
        checkpoint_number=to("step"),
        options=_OPTIONS,
    ).ordered("checkpoint_number check_interval options"),
    f"{_M}.restore_or_initialize": differs("CheckpointManager.restore_or_initialize", "It returns the step, or None."),
    f"{_M}.checkpoint": same("CheckpointManager.checkpoint"),
    f"{_M}.directory": same("CheckpointManager.directory"),
    f"{_M}.latest_checkpoint": same("CheckpointManager.latest_checkpoint"),
    f"{_M}.checkpoints": same("CheckpointManager.checkpoints"),
    f"{_M}.checkpoint_interval": same("CheckpointManager.checkpoint_interval"),
    f"{_M}.sync": renamed("CheckpointManager.wait_until_finished"),
}
