"""TensorFlow's names: cluster resolvers, servers, coordinators, and what happens when a task must go."""

from __future__ import annotations

from replicax.tensorflow.names.rows import Rows, absent, differs, members, refused, renamed, same, to

_D = "tf.distribute"
_X = "tf.distribute.experimental"
_R = "tf.distribute.cluster_resolver"
_C = "tf.distribute.coordinator"
_XC = "tf.distribute.experimental.coordinator"
_P = "tf.distribute.experimental.partitioners"
_RPC = "tf.distribute.experimental.rpc"
_CONFIG_PROTO = refused("There is no session to configure: no device is asked.", None)
_CLOUD = "JAX finds the hosts of a TPU by itself; the environment of a TPU VM names them."
_NO_SESSION = "There is no session to connect to."
_CALLS = "Calls between processes are not exposed; `rx.coordinator.ClusterCoordinator` schedules functions on workers."

CLUSTER: Rows = {
    # Resolvers.
    _R: same("cluster_resolver", "It has more: Open MPI, PMI, torchrun, JAX's variables."),
    f"{_R}.ClusterResolver": same("cluster_resolver.ClusterResolver"),
    **members(
        "cluster_resolver.ClusterResolver", "cluster_spec environment master task_id task_type", f"{_R}.ClusterResolver"
    ),
    f"{_R}.ClusterResolver.num_accelerators": differs(
        "cluster_resolver.ClusterResolver.num_accelerators",
        "As the source says; no device is asked.",
        config_proto=_CONFIG_PROTO,
    ).ordered("task_type task_id config_proto"),
    f"{_R}.SimpleClusterResolver": same("cluster_resolver.SimpleClusterResolver", "It takes a plain dict too."),
    f"{_R}.TFConfigClusterResolver": same(
        "cluster_resolver.TFConfigClusterResolver", "A malformed TF_CONFIG is an error that names the field."
    ),
    f"{_R}.UnionResolver": differs(
        "cluster_resolver.UnionResolver", "`master()` is this task's address, with the prefix of `rpc_layer`."
    ),
    f"{_R}.GCEClusterResolver": same("cluster_resolver.GCEClusterResolver"),
    f"{_R}.KubernetesClusterResolver": same("cluster_resolver.KubernetesClusterResolver"),
    f"{_R}.KubernetesExecutableLocation": same("cluster_resolver.KubernetesExecutableLocation"),
    **members(
        "cluster_resolver.KubernetesExecutableLocation",
        "WITHIN_CLUSTER OFF_CLUSTER",
        f"{_R}.KubernetesExecutableLocation",
    ),
    f"{_R}.SageMakerClusterResolver": same("cluster_resolver.SageMakerClusterResolver"),
    f"{_R}.SlurmClusterResolver": differs(
        "cluster_resolver.SlurmClusterResolver",
        "Hosts stay in Slurm's order, which is that of the ranks; it sets no environment variable: "
        "`gpu_environment()` returns them.",
    ),
    f"{_R}.SlurmClusterResolver.get_task_info": same("cluster_resolver.SlurmClusterResolver.get_task_info"),
    **{
        f"{_R}.{kind}ClusterResolver.rpc_layer": same(f"cluster_resolver.{kind}ClusterResolver.rpc_layer")
        for kind in ("GCE", "Simple", "TFConfig")
    },
    f"{_R}.UnionResolver.rpc_layer": same("cluster_resolver.UnionResolver.rpc_layer"),
    f"{_R}.TPUClusterResolver": differs(
        "cluster_resolver.TPUClusterResolver",
        _CLOUD,
        zone=refused(_CLOUD, None),
        project=refused(_CLOUD, None),
        coordinator_name=refused(_CLOUD, None),
        coordinator_address=refused(_CLOUD, None),
        credentials=refused(_CLOUD, None, "default"),
        service=refused(_CLOUD, None),
        discovery_url=refused(_CLOUD, None),
    ).ordered("tpu zone project job_name coordinator_name coordinator_address credentials service discovery_url"),
    f"{_R}.TPUClusterResolver.connect": absent("Make the resolver: nothing has to be connected. " + _CLOUD),
    f"{_R}.TPUClusterResolver.get_master": renamed("cluster_resolver.TPUClusterResolver.master"),
    f"{_R}.TPUClusterResolver.get_job_name": renamed("cluster_resolver.TPUClusterResolver.task_type", "A property."),
    f"{_R}.TPUClusterResolver.get_coordination_service_leader": absent("JAX's process 0 coordinates."),
    f"{_R}.TPUClusterResolver.get_tpu_system_metadata": absent("Ask `jax.devices()`."),
    f"{_R}.TPUClusterResolver.set_tpu_topology": absent("JAX knows the topology: see `jax.devices()[0].coords`."),
    f"{_R}.TPUClusterResolver.tpu_hardware_feature": absent("Ask `jax.devices()[0].device_kind`."),
    "tf.train.ClusterSpec": differs(
        "cluster_resolver.ClusterSpec",
        "Immutable, and checked when it is made: a job without tasks is an error. Jobs are sorted by name.",
    ),
    "tf.train.ClusterSpec.as_dict": same("cluster_resolver.ClusterSpec.as_dict"),
    "tf.train.ClusterSpec.as_cluster_def": absent("Use `as_dict()`: there are no protocol buffers."),
    "tf.train.ClusterSpec.jobs": same("cluster_resolver.ClusterSpec.jobs"),
    **{
        f"tf.train.ClusterSpec.{name}": same(f"cluster_resolver.ClusterSpec.{name}", "", job_name=to("job"))
        for name in ("job_tasks", "num_tasks", "task_indices")
    },
    "tf.train.ClusterSpec.task_address": same(
        "cluster_resolver.ClusterSpec.task_address", "", job_name=to("job"), task_index=to("index")
    ),
    # Servers and coordinators.
    f"{_D}.Server": differs(
        "Server",
        "It runs from when it is made; `replicax server` does it from the shell.",
        server_or_cluster_def=to("cluster"),
        job_name=to("job"),
        task_index=to("index"),
        protocol=refused("Tasks speak Ray's protocol.", None, "grpc"),
        config=refused(_NO_SESSION, None),
        start=refused("A server runs from when it is made.", True),
    ).ordered("server_or_cluster_def job_name task_index protocol config start"),
    f"{_D}.Server.create_local_server": absent(
        "`rx.ParameterServerStrategy(workers=..., servers=...)` starts local processes by itself."
    ),
    f"{_D}.Server.join": same("Server.join"),
    f"{_D}.Server.start": absent("A server runs from when it is made."),
    f"{_D}.Server.target": absent(_NO_SESSION + " Its address is `server.address`."),
    f"{_D}.Server.server_def": absent("Its address is `server.address`, its name `server.name`."),
    _C: same("coordinator"),
    _XC: renamed("coordinator"),
    f"{_C}.ClusterCoordinator": same("coordinator.ClusterCoordinator", "It takes a checkpoint manager too."),
    **members("coordinator.ClusterCoordinator", "done join strategy", f"{_C}.ClusterCoordinator"),
    f"{_C}.ClusterCoordinator.schedule": differs(
        "coordinator.ClusterCoordinator.schedule", "The function need not be an `rx.function`."
    ),
    f"{_C}.ClusterCoordinator.fetch": same("coordinator.ClusterCoordinator.fetch", "", val=to("value")),
    f"{_C}.ClusterCoordinator.create_per_worker_dataset": differs(
        "coordinator.ClusterCoordinator.create_per_worker_dataset",
        "It takes a function that returns any iterable of batches; each worker calls it.",
    ),
    f"{_C}.RemoteValue": same("coordinator.RemoteValue"),
    f"{_C}.RemoteValue.fetch": same("coordinator.RemoteValue.fetch", "NumPy arrays; it takes a timeout."),
    f"{_C}.RemoteValue.get": same("coordinator.RemoteValue.get", "JAX arrays; it takes a timeout."),
    f"{_C}.PerWorkerValue": differs(
        "coordinator.PerWorkerValues",
        "Made by `coordinator.create_per_worker_resource(fn)`, which each worker calls.",
        values=refused("`coordinator.create_per_worker_resource(fn)` makes it."),
    ),
    f"{_C}.experimental_get_current_worker_index": renamed(
        "coordinator.get_current_worker_index", "In dataset functions too."
    ),
    f"{_XC}.ClusterCoordinator": renamed("coordinator.ClusterCoordinator"),
    f"{_XC}.RemoteValue": renamed("coordinator.RemoteValue"),
    f"{_XC}.PerWorkerValues": renamed(
        "coordinator.PerWorkerValues",
        "Other order of parameters: `coordinator.create_per_worker_resource(fn)` makes it.",
        values=refused("`coordinator.create_per_worker_resource(fn)` makes it."),
    ),
    # Partitioners.
    _P: absent("Its classes stand in `replicax` itself: `rx.MinSizePartitioner` and the like."),
    f"{_P}.Partitioner": renamed("Partitioner"),
    f"{_P}.FixedShardsPartitioner": renamed("FixedShardsPartitioner", "0 shards are an error."),
    f"{_P}.MinSizePartitioner": renamed("MinSizePartitioner"),
    f"{_P}.MaxSizePartitioner": renamed("MaxSizePartitioner"),
    _RPC: absent(_CALLS),
    f"{_RPC}.Client": absent(_CALLS),
    f"{_RPC}.Client.call": absent(_CALLS),
    f"{_RPC}.Client.create": absent(_CALLS),
    f"{_RPC}.Server": absent(_CALLS),
    f"{_RPC}.Server.create": absent(_CALLS),
    f"{_RPC}.Server.register": absent(_CALLS),
    f"{_RPC}.Server.start": absent(_CALLS),
    # When a task must go.
    f"{_X}.PreemptionCheckpointHandler": renamed(
        "PreemptionCheckpointHandler", "The process ends with exit code 75, not 42."
    ),
    **members(
        "PreemptionCheckpointHandler",
        "run save_checkpoint_if_preempted total_run_calls watch_preemption_scope",
        f"{_X}.PreemptionCheckpointHandler",
    ),
    f"{_X}.TerminationConfig": renamed("TerminationConfig"),
    f"{_X}.PreemptionWatcher": absent(
        "`rx.PreemptionCheckpointHandler` watches for the notice; `rx.TerminationConfig(termination_watcher_fn=...)` "
        "says how."
    ),
    f"{_X}.PreemptionWatcher.block_until_worker_exit": absent("See `PreemptionWatcher`."),
    f"{_X}.PreemptionWatcher.preemption_message": absent("See `PreemptionWatcher`."),
}
