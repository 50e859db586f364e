"""What each public name of TensorFlow has become: one row a name. Data, no logic.

The guide `docs/guides/from-tf-distribute.md` shows these rows, and an `AttributeError` for a name that is not here
gives the advice of its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["same", "renamed", "differs", "absent"]


class Row(NamedTuple):
    """What one name of TensorFlow has become.

    Attributes:
        kind: `"same"`: same name and meaning. `"renamed"`: another name, same meaning. `"differs"`: it is here, and
            behaves otherwise in what `note` says. `"absent"`: it is not here; `note` says why and what to do instead.
        here: Its name below `replicax`, such as `"Strategy.run"`; empty for what is absent.
        note: A sentence or two in Markdown, with a full stop; may be empty for `"same"` and `"renamed"`.
    """

    kind: Kind
    here: str = ""
    note: str = ""


def _absent(note: str) -> Row:
    return Row("absent", "", note)


_V1 = "It belongs to TensorFlow 1's sessions and graphs."
_LOOP = "Iterate over what `strategy.distribute_dataset(...)` returns: `for batch in dataset:`."

NAMES: Mapping[str, Row] = {
    # Modules and functions of tf.distribute.
    "tf.distribute": _absent(
        "Its names stand in `replicax` itself: `tf.distribute.MirroredStrategy` is `rx.MirroredStrategy`."
    ),
    "tf.distribute.experimental": _absent(
        "Its names stand in `replicax` itself: `tf.distribute.experimental.ValueContext` is `rx.ValueContext`."
    ),
    "tf.distribute.experimental.partitioners": _absent(
        "Its classes stand in `replicax` itself: `rx.MinSizePartitioner` and the like."
    ),
    "tf.distribute.experimental.rpc": _absent(
        "Calls between processes are not exposed; `rx.coordinator.ClusterCoordinator` schedules functions on workers."
    ),
    "tf.distribute.experimental_set_strategy": Row("renamed", "set_strategy"),
    "tf.distribute.experimental_run_v2": Row("renamed", "Strategy.run", "It is a method of the strategy."),
    "tf.distribute.InputReplicationMode": _absent("There is one input pipeline for each worker."),
    "tf.distribute.RunOptions": _absent("XLA compiles each step for the shapes that it gets; there is nothing to set."),
    "tf.distribute.StrategyExtended": _absent("There is one object for each strategy: its methods are the strategy's."),
    "tf.distribute.experimental.CollectiveCommunication": Row("renamed", "CommunicationImplementation"),
    "tf.distribute.experimental.CollectiveHints": Row("renamed", "CommunicationOptions"),
    "tf.distribute.experimental.PreemptionWatcher": _absent(
        "`rx.PreemptionCheckpointHandler` watches for the notice; `rx.TerminationConfig(termination_watcher_fn=...)` "
        "says how."
    ),
    "tf.distribute.CollectiveAllReduceStrategy": Row("renamed", "MultiWorkerMirroredStrategy"),
    # Strategy.
    "tf.distribute.Strategy.experimental_run_v2": Row("renamed", "Strategy.run", "TensorFlow 2.2 renamed it too."),
    "tf.distribute.Strategy.experimental_run": Row("renamed", "Strategy.run", "TensorFlow 2.2 renamed it too."),
    "tf.distribute.Strategy.extended": _absent(
        "There is one object for each strategy: `strategy.extended.update` is `strategy.update`, `reduce_to` and "
        "`batch_reduce_to` are `strategy.reduce`, `worker_devices` is `strategy.devices`."
    ),
    "tf.distribute.Strategy.make_dataset_iterator": _absent(_LOOP),
    "tf.distribute.Strategy.make_input_fn_iterator": _absent(
        "Use `strategy.distribute_datasets_from_function(dataset_fn)`, and iterate: `for batch in dataset:`."
    ),
    "tf.distribute.Strategy.experimental_make_numpy_dataset": _absent(
        "`strategy.distribute_dataset((x, y), batch_size=...)` takes arrays."
    ),
    "tf.distribute.Strategy.make_experimental_numpy_dataset": _absent(
        "`strategy.distribute_dataset((x, y), batch_size=...)` takes arrays."
    ),
    "tf.distribute.Strategy.unwrap": Row("renamed", "Strategy.local_results"),
    "tf.distribute.Strategy.group": _absent("There are no operations to group: what a step assigns is assigned."),
    "tf.distribute.Strategy.configure": _absent(_V1 + " `rx.config` holds the settings of the process."),
    "tf.distribute.Strategy.update_config_proto": _absent(_V1),
    "tf.distribute.Strategy.colocate_vars_with": _absent(
        "The strategy places variables; `rx.LayoutStrategy` and `rx.dtensor` let you say where."
    ),
    "tf.distribute.Strategy.experimental_barrier": _absent("Use `rx.dtensor.barrier`; a step needs none."),
    "tf.distribute.Strategy.broadcast": Row("renamed", "Strategy.replicate"),
    # What is reached through `strategy.extended`.
    "tf.distribute.StrategyExtended.reduce_to": _absent(
        "`strategy.reduce(op, value, axis=None)` puts the result on every device."
    ),
    "tf.distribute.StrategyExtended.batch_reduce_to": _absent(
        "`strategy.reduce(op, nest, axis=None)` takes a nest of values and packs them."
    ),
    "tf.distribute.StrategyExtended.update": Row("renamed", "Strategy.update"),
    "tf.distribute.StrategyExtended.update_non_slot": _absent("Use `strategy.update`."),
    "tf.distribute.StrategyExtended.variable_created_in_scope": _absent(
        "A variable of another strategy is refused with a `StrategyMismatchError` where it is used."
    ),
    "tf.distribute.StrategyExtended.value_container": _absent("A variable is one object, not one for each device."),
    "tf.distribute.StrategyExtended.worker_devices": Row("renamed", "Strategy.devices"),
    "tf.distribute.StrategyExtended.parameter_devices": Row("renamed", "Strategy.devices"),
    "tf.distribute.StrategyExtended.experimental_require_static_shapes": _absent(
        "XLA compiles for static shapes everywhere."
    ),
    "tf.distribute.StrategyExtended.call_for_each_replica": Row("renamed", "Strategy.run"),
    "tf.distribute.StrategyExtended.broadcast_to": Row("renamed", "Strategy.replicate"),
    "tf.distribute.StrategyExtended.read_var": _absent("Read `variable.value`."),
    # TensorFlow beside tf.distribute: what scripts use in their steps.
    "tf.GradientTape": _absent(
        "A function takes its place: `loss, grads = rx.value_and_grad(loss_fn, variables)()`; the gradients are summed "
        "over the replicas."
    ),
    "tf.nn": _absent("`rx.compute_average_loss` and `rx.scale_regularization_loss` stand in `replicax` itself."),
    "tf.train": _absent("`rx.Checkpoint` and `rx.CheckpointManager` stand in `replicax` itself."),
    "tf.experimental": _absent("`tf.experimental.dtensor` is `rx.dtensor`."),
    "tf.keras": _absent("Use Keras 3 itself: `import keras`."),
    "tf.data.Dataset": _absent(
        "`strategy.distribute_dataset` takes any iterable of global batches: arrays with `batch_size=`, Grain, a torch "
        "`DataLoader`, a `tf.data.Dataset` where TensorFlow is installed."
    ),
    "tf.constant": _absent("Use `jax.numpy.asarray`."),
    "tf.cast": _absent("Use `x.astype(dtype)`."),
    "tf.reduce_sum": _absent("Use `jax.numpy.sum`."),
    "tf.reduce_mean": _absent("Use `jax.numpy.mean`."),
    "tf.gradients": _absent("Use `rx.grad(loss_fn, variables)()`."),
    "tf.print": _absent("Use `jax.debug.print('loss {}', loss)`, which prints at each call of a compiled step."),
    "tf.py_function": _absent("Use `jax.pure_callback` or `jax.experimental.io_callback`."),
    "tf.random": _absent("Use `keras.random` with a `keras.random.SeedGenerator`, or `jax.random`."),
    "tf.config.list_physical_devices": _absent("Use `jax.devices()`."),
    "tf.config.list_logical_devices": _absent("Use `jax.devices()`."),
    "tf.config.set_logical_device_configuration": Row(
        "renamed", "config.set_virtual_devices", "It takes a number: `rx.config.set_virtual_devices(8)`."
    ),
    "tf.config.run_functions_eagerly": Row("renamed", "config.run_eagerly"),
    "tf.function.get_concrete_function": _absent(
        "`function.lower(*args)` gives the program for these arguments; `rx.export` saves one."
    ),
    "tf.function.experimental_get_compiler_ir": _absent("Use `function.lower(*args).compile().as_text()`."),
    "tf.function.experimental_get_tracing_count": _absent("Use the property `function.num_programs`."),
    "tf.function.pretty_printed_concrete_signatures": _absent(
        "`function.num_programs` says how many kinds of arguments have been compiled."
    ),
}
