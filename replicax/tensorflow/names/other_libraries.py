"""Names of PyTorch, Keras, JAX and others that users of theirs look for in `replicax`, or on a strategy."""

from __future__ import annotations

from replicax.tensorflow.names.rows import Row, Rows, absent, renamed

#: The libraries, by how their names begin.
LIBRARIES = {
    "torch": "PyTorch",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "horovod": "Horovod",
    "keras": "Keras",
    "jax": "JAX",
}
_T = "torch.distributed"
_K = "keras.distribution"
_H = "horovod.tensorflow"
_START = (
    "A strategy finds the other processes when it is made: `strategy = rx.MultiWorkerMirroredStrategy()`; "
    "`replicax run --workers 2 script.py` starts them."
)
_RANK = (
    "A process is `strategy.worker_index` of `strategy.num_workers`; in a step a replica is "
    "`rx.get_replica_context().replica_id_in_sync_group`."
)
_SIZE = "`strategy.num_replicas_in_sync` counts replicas (devices), `strategy.num_workers` processes."
_ENDS = "Nothing is to be closed: a strategy lives as long as its process. Leave it out."
_CONTEXT = "In a step: `rx.get_replica_context()."
_DATA_PARALLEL = "Make the model in `with strategy.scope():`; on several machines use `rx.MultiWorkerMirroredStrategy`."
_ONE_STRATEGY = "Make the model in `with strategy.scope():`; nothing is wrapped."
_SHARDED = "It shards weights, gradients and the optimizer's state over the devices; make the model in its scope."
_LAYOUTS = "It takes the mesh's shape, and rules or a table from patterns of variables' paths to layouts."
_OPTIMIZER = (
    "Use any optimizer as it is: gradients of `rx.value_and_grad` and of `Model.fit` are summed over the replicas."
)
_SENDS = "In a step all replicas call `jax.lax.ppermute(x, 'replica', pairs)`."
_MESH = "JAX's and Keras's own are what there is: `rx.LayoutStrategy(mesh, layout)` takes either."
_DATA = (
    "`strategy.distribute_dataset(dataset)` gives each replica its rows; shuffle the dataset with one seed on all "
    "workers."
)
_PLACED = "`strategy.replicate(tree)` puts arrays on every device, `strategy.distribute_dataset` splits batches."


def _all(names: str, prefix: str, row: Row) -> Rows:
    return {f"{prefix}.{name}": row for name in names.split()}


ELSEWHERE: Rows = {
    # Processes.
    **_all("init_process_group", _T, absent(_START)),
    **_all("initialize", _K, absent(_START)),
    **_all("init", _H, absent(_START)),
    **_all("destroy_process_group", _T, absent(_ENDS)),
    **_all("shutdown", _H, absent(_ENDS)),
    f"{_T}.is_initialized": renamed("has_strategy", "It says whether a strategy's scope is open."),
    **_all("get_rank get_node_local_rank", _T, absent(_RANK)),
    **_all("rank local_rank", _H, absent(_RANK)),
    **_all("process_index axis_index", "jax", absent(_RANK)),
    **_all("get_world_size", _T, absent(_SIZE)),
    **_all("size local_size", _H, absent(_SIZE)),
    **_all("process_count device_count", "jax", absent(_SIZE)),
    f"{_T}.world_size": absent(_SIZE),
    **_all("barrier monitored_barrier", _T, absent("`strategy.barrier()` waits for all workers.")),
    "accelerate.wait_for_everyone": absent("`strategy.barrier()` waits for all workers."),
    "lightning.rank_zero_only": absent("Write `if strategy.is_chief:` around what one worker does, such as printing."),
    "accelerate.is_main_process": absent("It is `strategy.is_chief`."),
    f"{_T}.new_group": absent("All replicas of a strategy are one group. `rx.LayoutStrategy` has several axes."),
    # Collectives.
    **_all(
        "all_reduce",
        _T,
        absent(_CONTEXT + "all_reduce('sum', value)`. Between steps: `strategy.reduce('sum', value)`."),
    ),
    **_all("allreduce", _H, absent(_CONTEXT + "all_reduce('sum', value)`.")),
    **_all(
        "psum pmean pmax pmin",
        "jax.lax",
        absent(_CONTEXT + "all_reduce('sum', value)` or 'mean'; JAX's own work too: `jax.lax.pmax(x, 'replica')`."),
    ),
    **_all("reduce", _T, absent("Between steps: `strategy.reduce('sum', value)`; every worker gets the result.")),
    **_all("all_gather all_gather_into_tensor", _T, absent(_CONTEXT + "all_gather(value, axis=0)`.")),
    **_all("gather", _T, absent("Between steps: `strategy.gather(value, axis=0)`; every worker gets the result.")),
    **_all(
        "all_gather_object broadcast_object_list gather_object",
        _T,
        absent("No Python objects are exchanged. Arrays are: `strategy.gather` of what a step returned."),
    ),
    **_all(
        "reduce_scatter reduce_scatter_tensor",
        _T,
        absent("In a step: `jax.lax.psum_scatter(x, 'replica')`."),
    ),
    **_all("all_to_all all_to_all_single", _T, absent("In a step: `jax.lax.all_to_all(x, 'replica', 0, 0)`.")),
    **_all(
        "broadcast",
        _T,
        absent("Variables that are made in `with strategy.scope():` begin with the first worker's values on all."),
    ),
    **_all("broadcast_variables broadcast_parameters", _H, absent("Variables of a scope begin equal. Leave it out.")),
    **_all("send recv isend irecv scatter", _T, absent(_SENDS)),
    **_all("ppermute", "jax.lax", absent(_SENDS)),
    # Models.
    f"{_K}.DataParallel": renamed("MirroredStrategy", _DATA_PARALLEL),
    "torch.nn.DataParallel": renamed("MirroredStrategy", _ONE_STRATEGY),
    **_all("DistributedDataParallel DDP", "torch.nn.parallel", renamed("MultiWorkerMirroredStrategy", _ONE_STRATEGY)),
    "lightning.DDPStrategy": renamed("MultiWorkerMirroredStrategy", _ONE_STRATEGY),
    **_all("FullyShardedDataParallel FSDP fully_shard", f"{_T}.fsdp", renamed("FullyShardedStrategy", _SHARDED)),
    **_all("FSDPStrategy DeepSpeedStrategy", "lightning", renamed("FullyShardedStrategy", _SHARDED)),
    f"{_T}.optim.ZeroRedundancyOptimizer": renamed("FullyShardedStrategy", _SHARDED),
    f"{_H}.DistributedOptimizer": absent(_OPTIMIZER),
    f"{_H}.DistributedGradientTape": absent("Use `rx.value_and_grad`, which sums gradients over the replicas."),
    "torch.nn.parallel.DistributedDataParallel.no_sync": renamed(
        "accumulate_gradients", "It sums the gradients of several micro-batches, and exchanges once."
    ),
    **_all("DistributedSampler DistributedDataLoader", "torch.utils.data", absent(_DATA)),
    **_all(
        "Trainer Fabric",
        "lightning",
        absent("Train by `Model.fit`, or by a loop of `strategy.run`."),
    ),
    "accelerate.Accelerator": absent("Make a strategy, such as `rx.MirroredStrategy()`; make the model in its scope."),
    # Meshes and layouts.
    **_all("ModelParallel TensorLayout", _K, renamed("LayoutStrategy", _LAYOUTS)),
    f"{_K}.set_distribution": renamed("set_strategy", "Or open the strategy's scope: `with strategy.scope():`."),
    f"{_K}.distribution": renamed("get_strategy"),
    f"{_K}.list_devices": absent("Use `jax.devices()`."),
    "jax.devices": absent("Use `jax.devices()` itself; `strategy.devices` are a strategy's."),
    f"{_K}.DeviceMesh": absent(_MESH),
    f"{_K}.LayoutMap": absent("Keras's own is taken: `rx.LayoutStrategy(mesh, layout_map)`. So is a dict of patterns."),
    f"{_T}.init_device_mesh": renamed("dtensor.create_mesh", _MESH),
    **_all("Mesh NamedSharding PartitionSpec", "jax.sharding", absent(_MESH)),
    **_all("DTensor distribute_tensor", f"{_T}.tensor", renamed("dtensor", "It has arrays with layouts over a mesh.")),
    **_all(
        "Shard Replicate Partial distribute_module parallelize_module ColwiseParallel RowwiseParallel",
        f"{_T}.tensor",
        renamed("LayoutStrategy", _LAYOUTS),
    ),
    # Programs.
    **_all("pmap shard_map", "jax", renamed("Strategy.run", "One function runs on all devices, each with its rows.")),
    **_all("jit", "jax", renamed("function", "It compiles what it calls, `strategy.run` included.")),
    "torch.compile": renamed("function", "`strategy.run` compiles a step by itself."),
    "jax.device_put": absent(_PLACED),
    "torch.no_grad": absent("Gradients are of what `rx.value_and_grad` or `rx.grad` is given alone. Leave it out."),
    **_all("save load_state_dict", "torch", absent("`rx.Checkpoint` and `rx.CheckpointManager` save and restore.")),
}
