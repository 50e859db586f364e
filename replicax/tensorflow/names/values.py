"""TensorFlow's names: values, datasets, reductions and how they travel."""

from __future__ import annotations

from replicax.tensorflow.names.rows import Rows, absent, differs, members, refused, renamed, same, to

_D = "tf.distribute"
_X = "tf.distribute.experimental"
_OPS = "tf.distribute.CrossDeviceOps"
_T = "tf.types.experimental.distributed"
_ONE_PIPELINE = (
    "There is one input pipeline for each worker; with `distribute_datasets_from_function` consecutive batches go to "
    "consecutive replicas."
)
_ALWAYS_PLACED = "Batches are placed on the devices; `prefetch=0` places each when it is asked for."
_OVERRIDE = "Cross-device ops have one method to override, `_all_reduce_sum`; see the guide to them."

VALUES: Rows = {
    f"{_D}.DistributedValues": same("DistributedValues"),
    f"{_T}.PerReplica": differs(
        "PerReplica",
        "Its components are stacked in one array, `stacked`. Components of different shapes are another class of "
        "`DistributedValues`.",
    ),
    f"{_T}.Mirrored": differs(
        "Mirrored", "No wrapper: the type of arrays that every device holds in full. Variables are not of it."
    ),
    # Datasets.
    f"{_D}.DistributedDataset": differs(
        "data.DistributedDataset",
        "The result of `distribute_dataset`; `distribute_datasets_from_function` returns a "
        "`DistributedDatasetFromFunction`, which is another class.",
    ),
    f"{_D}.DistributedDataset.element_spec": differs(
        "data.DistributedDataset.element_spec", "The shape and dtype of one replica's component."
    ),
    f"{_D}.DistributedDataset.reduce": same(
        "data.DistributedDataset.reduce", "A loop in Python: `reduce_func` is called for each batch."
    ),
    f"{_D}.DistributedIterator": renamed("data.DistributedIterator", "The result of `iter(dataset)`."),
    f"{_D}.DistributedIterator.get_next": differs(
        "data.DistributedIterator.get_next", "At the end it raises StopIteration, as `next` does."
    ),
    f"{_D}.DistributedIterator.get_next_as_optional": same(
        "data.DistributedIterator.get_next_as_optional", "It returns an `rx.data.Optional`."
    ),
    f"{_D}.DistributedIterator.element_spec": differs(
        "data.DistributedIterator.element_spec", "The shape and dtype of one replica's component."
    ),
    f"{_D}.InputContext": same("InputContext"),
    **members(
        "InputContext",
        "get_per_replica_batch_size input_pipeline_id num_input_pipelines num_replicas_in_sync",
        f"{_D}.InputContext",
    ),
    f"{_X}.InputContext": renamed("InputContext"),
    f"{_D}.InputOptions": differs(
        "InputOptions",
        "Fields of its own: `prefetch`, `remainder`, `auto_shard_policy`, `uneven_workers`, `worker_timeout`.",
        experimental_fetch_to_device=refused(_ALWAYS_PLACED, None, True),
        experimental_replication_mode=refused(_ONE_PIPELINE, "PER_WORKER"),
        experimental_place_dataset_on_device=refused("A dataset is read on the host.", False),
        experimental_per_replica_buffer_size=to("prefetch"),
    ).ordered(
        "experimental_fetch_to_device experimental_replication_mode experimental_place_dataset_on_device "
        "experimental_per_replica_buffer_size"
    ),
    f"{_D}.InputOptions.experimental_fetch_to_device": absent(_ALWAYS_PLACED),
    f"{_D}.InputOptions.experimental_replication_mode": absent(_ONE_PIPELINE),
    f"{_D}.InputOptions.experimental_place_dataset_on_device": absent("A dataset is read on the host."),
    f"{_D}.InputOptions.experimental_per_replica_buffer_size": renamed("InputOptions.prefetch"),
    f"{_D}.InputReplicationMode": absent(_ONE_PIPELINE),
    f"{_D}.InputReplicationMode.PER_WORKER": absent("See `InputReplicationMode`."),
    f"{_D}.InputReplicationMode.PER_REPLICA": absent("See `InputReplicationMode`."),
    f"{_X}.ValueContext": renamed("ValueContext"),
    f"{_X}.ValueContext.num_replicas_in_sync": same("ValueContext.num_replicas_in_sync"),
    f"{_X}.ValueContext.replica_id_in_sync_group": same("ValueContext.replica_id_in_sync_group"),
    "tf.data.experimental.AutoShardPolicy": renamed("AutoShardPolicy", "A field of `rx.InputOptions`."),
    **members("AutoShardPolicy", "OFF AUTO FILE DATA HINT", "tf.data.experimental.AutoShardPolicy"),
    "tf.data.experimental.DistributeOptions": absent("Give `rx.InputOptions(auto_shard_policy=...)`."),
    "tf.data.experimental.DistributeOptions.auto_shard_policy": absent(
        "Give `rx.InputOptions(auto_shard_policy=...)` to `distribute_dataset`."
    ),
    "tf.data.experimental.DistributeOptions.num_devices": absent("The strategy knows its devices."),
    # Reductions.
    f"{_D}.ReduceOp": same("ReduceOp", 'The strings `"sum"` and `"mean"` work everywhere.'),
    **members("ReduceOp", "SUM MEAN from_variable_aggregation", f"{_D}.ReduceOp"),
    _OPS: differs("CrossDeviceOps", _OVERRIDE),
    f"{_OPS}.reduce": absent("Use `strategy.reduce`, or `all_reduce` of the replica context."),
    f"{_OPS}.batch_reduce": absent("`strategy.reduce` takes a pytree of values and packs them."),
    f"{_OPS}.broadcast": absent("Use `strategy.replicate(value)`."),
    f"{_OPS}.reduce_implementation": absent(_OVERRIDE),
    f"{_OPS}.batch_reduce_implementation": absent(_OVERRIDE),
    f"{_OPS}.broadcast_implementation": absent(_OVERRIDE),
    f"{_D}.NcclAllReduce": differs("NcclAllReduce", "XLA's all-reduce on any device."),
    f"{_D}.HierarchicalCopyAllReduce": same("HierarchicalCopyAllReduce"),
    f"{_D}.ReductionToOneDevice": differs(
        "ReductionToOneDevice", "`accumulation_fn` gets the list of all replicas' values."
    ),
    f"{_X}.CommunicationOptions": differs(
        "CommunicationOptions", "`timeout_seconds` is for the whole job, not for a call; `compression` is new."
    ),
    f"{_X}.CommunicationOptions.merge": same("CommunicationOptions.merge", "", options=to("other")),
    f"{_X}.CollectiveHints": renamed("CommunicationOptions"),
    f"{_X}.CommunicationImplementation": renamed("CommunicationImplementation", "Its names work too, in any case."),
    **members("CommunicationImplementation", "AUTO RING NCCL", f"{_X}.CommunicationImplementation"),
    f"{_X}.CollectiveCommunication": renamed("CommunicationImplementation"),
    **members("CommunicationImplementation", "AUTO RING NCCL", f"{_X}.CollectiveCommunication"),
}
