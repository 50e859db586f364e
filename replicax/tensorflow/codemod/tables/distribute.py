"""tf.distribute beyond the table of names: what the rows' advice means in code, and the kinds of its objects."""

from __future__ import annotations

import libcst as cst

from replicax.tensorflow.codemod.rules import Call, Drop, Refuse, Rename, Rewrite, Rewriting, Rule
from replicax.tensorflow.codemod.tensors import LOCAL_RESULTS, expect_partial, variable
from replicax.tensorflow.names import NAMES, Keyword

_D = "tf.distribute"
_X = "tf.distribute.experimental"
_S = "tf.distribute.Strategy"
_C = "tf.distribute.coordinator"
_XC = "tf.distribute.experimental.coordinator"
_T = "tf.experimental.dtensor"

#: Keras's names are the same; those of DTensor have rows.
PREFIXES: dict[str, str | Rule] = {
    "tf.experimental.dtensor": Refuse("rx.dtensor has no such name: the page of its names says what it has."),
    "tf.keras": "keras",
}

#: Hints for TensorFlow's compiler.
_NO_EFFECT = {
    name: Keyword("", "XLA compiles for the shapes that come.", None)
    for name in ("jit_compile", "experimental_compile", "reduce_retracing", "experimental_relax_shapes", "autograph")
}
_FUNCTION = Call("replicax.function", {**NAMES["tf.function"].keywords, **_NO_EFFECT}, NAMES["tf.function"].order)


def _function(rewriting: Rewriting, node: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
    """`@tf.function(...)` and `tf.function(fn, ...)`; without arguments that are left it is a plain decorator."""
    args = rewriting.arguments(_FUNCTION, "tf.function", node, updated.args)
    if args is None:
        return None
    function = rewriting.renamed(node.func, "replicax.function")
    return updated.with_changes(func=function, args=args) if args else function


_VARIABLE = Call("replicax.Variable", NAMES["tf.Variable"].keywords, NAMES["tf.Variable"].order)
_CALLED = "Its parameters differ from those of replicax.Variable: call it there, or write a lambda."
_TPU = Drop("JAX finds the devices by itself, and a strategy connects its workers.")

RULES: dict[str, Rule] = {
    "tf.tpu.experimental.initialize_tpu_system": _TPU,
    "tf.config.experimental_connect_to_cluster": _TPU,
    "tf.config.experimental_connect_to_host": _TPU,
    "tf.function": Rewrite(_function, Rename("replicax.function")),
    "tf.Variable": Rewrite(variable(_VARIABLE), Refuse(_CALLED)),
    "tf.keras": Rename("keras"),
    "tf.experimental.dtensor": Rename("replicax.dtensor"),
}

METHODS: dict[tuple[str, str], Rule] = {}

#: Methods of strategies that nothing else has: renamed also where the object's kind is unknown.
UNKNOWN_METHODS: dict[str, Rule] = {
    "experimental_run_v2": Rename("run"),
    "experimental_distribute_dataset": Rename("distribute_dataset"),
    "experimental_distribute_datasets_from_function": Rename("distribute_datasets_from_function"),
    "experimental_distribute_values_from_function": Rename("distribute_values_from_function"),
    "experimental_local_results": Rename("local_results"),
    "expect_partial": Rewrite(expect_partial),
}

RESULTS = {
    **{f"{_D}.{name}": _S for name in ("MirroredStrategy", "OneDeviceStrategy", "MultiWorkerMirroredStrategy")},
    **{f"{_D}.{name}": _S for name in ("ParameterServerStrategy", "CollectiveAllReduceStrategy", "get_strategy")},
    **{f"{_X}.{name}": _S for name in ("MultiWorkerMirroredStrategy", "CentralStorageStrategy")},
    f"{_X}.ParameterServerStrategy": _S,
    f"{_D}.TPUStrategy": f"{_D}.TPUStrategy",
    f"{_X}.TPUStrategy": f"{_D}.TPUStrategy",
    f"{_D}.Strategy": _S,
    f"{_D}.get_replica_context": f"{_D}.ReplicaContext",
    f"{_D}.InputContext": f"{_D}.InputContext",
    f"{_D}.Server": f"{_D}.Server",
    f"{_D}.cluster_resolver.TPUClusterResolver": f"{_D}.cluster_resolver.TPUClusterResolver",
    f"{_D}.cluster_resolver.": f"{_D}.cluster_resolver.ClusterResolver",
    f"{_C}.ClusterCoordinator": f"{_C}.ClusterCoordinator",
    f"{_XC}.ClusterCoordinator": f"{_C}.ClusterCoordinator",
    f"{_X}.PreemptionCheckpointHandler": f"{_X}.PreemptionCheckpointHandler",
    "tf.GradientTape": "tf.GradientTape",
    "tf.Variable": "tf.Variable",
    "tf.function": "tf.function",
    "tf.train.Checkpoint": "tf.train.Checkpoint",
    "tf.train.CheckpointManager": "tf.train.CheckpointManager",
    "tf.train.ClusterSpec": "tf.train.ClusterSpec",
    f"{_T}.create_mesh": f"{_T}.Mesh",
    f"{_T}.create_distributed_mesh": f"{_T}.Mesh",
    f"{_T}.Mesh": f"{_T}.Mesh",
    f"{_T}.Layout": f"{_T}.Layout",
    f"{_T}.DTensorDataset": f"{_T}.DTensorDataset",
    f"{_T}.DVariable": f"{_T}.DVariable",
}

_DATASETS = ("experimental_distribute_dataset", "distribute_datasets_from_function")

MEMBERS = {
    **{(_S, name): f"{_D}.DistributedDataset" for name in _DATASETS},
    (_S, "experimental_distribute_datasets_from_function"): f"{_D}.DistributedDataset",
    (_S, "extended"): f"{_D}.StrategyExtended",
    (_S, "cluster_resolver"): f"{_D}.cluster_resolver.ClusterResolver",
    (_S, "num_replicas_in_sync"): "int",
    (_S, "run"): "PerReplica",
    (_S, "experimental_local_results"): LOCAL_RESULTS,
    (_S, "reduce"): "tf.Tensor",
    (_S, "gather"): "tf.Tensor",
    (f"{_D}.ReplicaContext", "strategy"): _S,
    (f"{_D}.DistributedDataset", "__iter__"): f"{_D}.DistributedIterator",
    (f"{_C}.ClusterCoordinator", "strategy"): _S,
    (f"{_C}.ClusterCoordinator", "schedule"): f"{_C}.RemoteValue",
    ("tf.train.CheckpointManager", "checkpoint"): "tf.train.Checkpoint",
    (f"{_T}.Layout", "mesh"): f"{_T}.Mesh",
}

BASES = {
    f"{_D}.TPUStrategy": _S,
    f"{_D}.cluster_resolver.TPUClusterResolver": f"{_D}.cluster_resolver.ClusterResolver",
    f"{_T}.DVariable": "tf.Variable",
}
