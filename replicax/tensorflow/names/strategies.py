"""TensorFlow's names: `tf.distribute`'s functions, strategies and contexts."""

from __future__ import annotations

from replicax.tensorflow.names.rows import Rows, absent, differs, members, refused, renamed, same, to

_D = "tf.distribute"
_X = "tf.distribute.experimental"
_S = "tf.distribute.Strategy"
_E = "tf.distribute.StrategyExtended"
_V1 = "It belongs to TensorFlow 1's sessions and graphs."
_LOOP = "Iterate over what `strategy.distribute_dataset(...)` returns: `for batch in dataset:`."
_ONE_CORE = "A replica is one device; `rx.LayoutStrategy` and `rx.dtensor` shard a model over several."
_RUN_OPTIONS = refused("XLA compiles each step for the shapes that it gets; there is nothing to set.", None)
_NO_ASSIGNMENT = refused("Replicas are in JAX's order of devices. " + _ONE_CORE, None)

STRATEGIES: Rows = {
    _D: absent("Its names stand in `replicax` itself: `tf.distribute.MirroredStrategy` is `rx.MirroredStrategy`."),
    _X: absent("Its names stand in `replicax` itself: `tf.distribute.experimental.ValueContext` is `rx.ValueContext`."),
    **members("", "get_replica_context get_strategy has_strategy in_cross_replica_context", _D),
    f"{_D}.experimental_set_strategy": renamed("set_strategy"),
    f"{_D}.experimental_run_v2": renamed("Strategy.run", "It is a method of the strategy."),
    f"{_D}.RunOptions": absent("XLA compiles each step for the shapes that it gets; there is nothing to set."),
    f"{_D}.RunOptions.experimental_bucketizing_dynamic_shape": absent("See `RunOptions`."),
    f"{_D}.RunOptions.experimental_enable_dynamic_batch_size": absent("See `RunOptions`."),
    f"{_D}.RunOptions.experimental_xla_options": absent("See `RunOptions`; XLA takes options from `XLA_FLAGS`."),
    # Strategies.
    f"{_D}.MirroredStrategy": same("MirroredStrategy"),
    f"{_D}.OneDeviceStrategy": same("OneDeviceStrategy"),
    f"{_X}.CentralStorageStrategy": renamed("CentralStorageStrategy"),
    f"{_D}.MultiWorkerMirroredStrategy": differs(
        "MultiWorkerMirroredStrategy",
        "More sources than TF_CONFIG, and it says who is missing.",
    ),
    f"{_X}.MultiWorkerMirroredStrategy": differs(
        "MultiWorkerMirroredStrategy",
        "Other order of parameters: the resolver comes first, as in the class that is not experimental.",
        communication=refused(
            "Give `communication_options=rx.CommunicationOptions(implementation=...)`.", None, "AUTO", "auto"
        ),
    ),
    f"{_D}.CollectiveAllReduceStrategy": renamed("MultiWorkerMirroredStrategy"),
    f"{_D}.ParameterServerStrategy": differs(
        "ParameterServerStrategy",
        "A step is split into one pull and one push; see [asynchronous training](asynchronous.md). Without a resolver "
        "it "
        "asks the environment.",
    ),
    f"{_X}.ParameterServerStrategy": renamed("ParameterServerStrategy"),
    f"{_D}.TPUStrategy": differs(
        "TPUStrategy",
        "The engine of `MultiWorkerMirroredStrategy`; run on virtual devices only, and compiled for real slices.",
        experimental_device_assignment=_NO_ASSIGNMENT,
        experimental_spmd_xla_partitioning=refused(_ONE_CORE, False, None),
    ).ordered("tpu_cluster_resolver experimental_device_assignment experimental_spmd_xla_partitioning"),
    f"{_X}.TPUStrategy": renamed("TPUStrategy", "", device_assignment=_NO_ASSIGNMENT).ordered(
        "tpu_cluster_resolver device_assignment"
    ),
    f"{_D}.TPUStrategy.experimental_assign_to_logical_device": absent(_ONE_CORE),
    f"{_D}.TPUStrategy.experimental_replicate_to_logical_devices": absent(_ONE_CORE),
    f"{_D}.TPUStrategy.experimental_split_to_logical_devices": absent(_ONE_CORE),
    # Strategy.
    _S: differs(
        "Strategy",
        "There is no separate `extended` object; subclass one of the strategies.",
        extended=refused("There is one object for each strategy: subclass `rx.MirroredStrategy` or another one."),
    ),
    f"{_S}.scope": same("Strategy.scope"),
    f"{_S}.run": differs(
        "Strategy.run",
        "Python runs once for all replicas; equal results are `Mirrored`. Numbers among the arguments become arrays.",
        options=_RUN_OPTIONS,
    ).ordered("fn args kwargs options"),
    f"{_S}.reduce": same(
        "Strategy.reduce",
        "`axis` may be left out; the result is on every device. A list is a pytree of values, not an array.",
        reduce_op=to("op"),
    ),
    f"{_S}.gather": same("Strategy.gather"),
    f"{_S}.experimental_local_results": renamed(
        "Strategy.local_results",
        "The old name works too. A pytree without per-replica values gives a tuple of one, as any other value.",
    ),
    f"{_S}.experimental_distribute_dataset": differs(
        "Strategy.distribute_dataset",
        "The old name works too. It takes any iterable of global batches, and arrays with `batch_size=`; rows that do "
        "not divide go to fewer replicas.",
    ),
    f"{_S}.distribute_datasets_from_function": same("Strategy.distribute_datasets_from_function"),
    f"{_S}.experimental_distribute_datasets_from_function": renamed(
        "Strategy.distribute_datasets_from_function", "The old name works too."
    ),
    f"{_S}.experimental_distribute_values_from_function": renamed(
        "Strategy.distribute_values_from_function", "The old name works too."
    ),
    f"{_S}.num_replicas_in_sync": same("Strategy.num_replicas_in_sync"),
    f"{_S}.cluster_resolver": same("Strategy.cluster_resolver"),
    f"{_S}.extended": absent(
        "There is one object for each strategy: `strategy.extended.update` is `strategy.update`, `reduce_to` and "
        "`batch_reduce_to` are `strategy.reduce`, `worker_devices` is `strategy.devices`."
    ),
    f"{_S}.experimental_run_v2": renamed("Strategy.run", "TensorFlow 2.2 renamed it too."),
    f"{_S}.experimental_run": renamed(
        "Strategy.run",
        "TensorFlow 2.2 renamed it too.",
        input_iterator=refused("Take the batch outside: `strategy.run(fn, args=(next(iterator),))`.", None),
    ),
    f"{_S}.make_dataset_iterator": absent(_LOOP),
    f"{_S}.make_input_fn_iterator": absent(
        "Use `strategy.distribute_datasets_from_function(dataset_fn)`, and iterate: `for batch in dataset:`."
    ),
    f"{_S}.experimental_make_numpy_dataset": absent(
        "`strategy.distribute_dataset((x, y), batch_size=...)` takes arrays."
    ),
    f"{_S}.make_experimental_numpy_dataset": absent(
        "`strategy.distribute_dataset((x, y), batch_size=...)` takes arrays."
    ),
    f"{_S}.unwrap": renamed("Strategy.local_results"),
    f"{_S}.group": absent("There are no operations to group: what a step assigns is assigned."),
    f"{_S}.configure": absent(_V1 + " `rx.config` holds the settings of the process."),
    f"{_S}.update_config_proto": absent(_V1),
    f"{_S}.colocate_vars_with": absent(
        "The strategy places variables; `rx.LayoutStrategy` and `rx.dtensor` let you say where."
    ),
    f"{_S}.experimental_barrier": absent("`strategy.barrier()` waits for all workers; a step needs none."),
    f"{_S}.broadcast": renamed("Strategy.replicate"),
    # Names that are reached through `strategy.extended`.
    _E: absent("There is one object for each strategy: its methods are the strategy's."),
    f"{_E}.reduce_to": absent("`strategy.reduce(op, value, axis=None)` puts the result on every device."),
    f"{_E}.batch_reduce_to": absent(
        "`strategy.reduce(op, values, axis=None)` takes a pytree of values and packs them."
    ),
    f"{_E}.update": renamed("Strategy.update", "On the strategy itself.", var=to("variable")).ordered(
        "var fn args kwargs group"
    ),
    f"{_E}.update_non_slot": absent("Use `strategy.update`."),
    f"{_E}.non_slot_devices": absent("The strategy places variables; `strategy.explain(variables)` says where."),
    f"{_E}.colocate_vars_with": absent(
        "The strategy places variables; `rx.LayoutStrategy` and `rx.dtensor` let you say where."
    ),
    f"{_E}.variable_created_in_scope": absent(
        "A variable of another strategy is refused with a `StrategyMismatchError` where it is used."
    ),
    f"{_E}.value_container": absent("A variable is one object, not one for each device."),
    f"{_E}.worker_devices": renamed("Strategy.devices", "The devices of all replicas, those of other workers too."),
    f"{_E}.parameter_devices": absent("`strategy.explain(variables)` says where variables are."),
    f"{_E}.experimental_require_static_shapes": absent("XLA compiles for static shapes everywhere."),
    f"{_E}.experimental_between_graph": absent(_V1),
    f"{_E}.experimental_should_init": absent(_V1),
    f"{_E}.should_checkpoint": absent(
        "All workers call `save`, each writes its parts; `strategy.is_chief` says who writes logs."
    ),
    f"{_E}.should_save_summary": absent("`strategy.is_chief` says who writes logs."),
    f"{_E}.call_for_each_replica": renamed("Strategy.run"),
    f"{_E}.broadcast_to": absent("`strategy.replicate(value)` puts a value on every device."),
    f"{_E}.read_var": absent("Read `variable.value`."),
    # The replica context.
    f"{_D}.ReplicaContext": differs(
        "ReplicaContext",
        "Other order of parameters: `run` makes it, `rx.get_replica_context()` returns it.",
        replica_id_in_sync_group=refused("`rx.get_replica_context()` returns the running replica's context."),
    ),
    **members(
        "ReplicaContext",
        "devices merge_call num_replicas_in_sync replica_id_in_sync_group strategy",
        f"{_D}.ReplicaContext",
    ),
    f"{_D}.ReplicaContext.all_gather": same("ReplicaContext.all_gather", "`options` has no effect."),
    f"{_D}.ReplicaContext.all_reduce": differs(
        "ReplicaContext.all_reduce",
        "The sum of a value that is equal on all replicas already is an error.",
        reduce_op=to("op"),
    ),
}
