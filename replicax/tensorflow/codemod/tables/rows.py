"""The rules that follow from `tensorflow.names`, the table of what each name of tf.distribute and DTensor became."""

from __future__ import annotations

from replicax.tensorflow.codemod.rules import Call, Refuse, Rename, Rule
from replicax.tensorflow.names import NAMES, Row

#: Classes whose members' rows are rules for methods and attributes, and the kind that has them.
OWNERS = {
    "tf.distribute.Strategy": "tf.distribute.Strategy",
    "tf.distribute.StrategyExtended": "tf.distribute.StrategyExtended",
    "tf.distribute.ReplicaContext": "tf.distribute.ReplicaContext",
    "tf.distribute.InputContext": "tf.distribute.InputContext",
    "tf.distribute.DistributedDataset": "tf.distribute.DistributedDataset",
    "tf.distribute.DistributedIterator": "tf.distribute.DistributedIterator",
    "tf.distribute.TPUStrategy": "tf.distribute.TPUStrategy",
    "tf.distribute.Server": "tf.distribute.Server",
    "tf.distribute.coordinator.ClusterCoordinator": "tf.distribute.coordinator.ClusterCoordinator",
    "tf.distribute.coordinator.RemoteValue": "tf.distribute.coordinator.RemoteValue",
    "tf.distribute.cluster_resolver.ClusterResolver": "tf.distribute.cluster_resolver.ClusterResolver",
    "tf.distribute.cluster_resolver.TPUClusterResolver": "tf.distribute.cluster_resolver.TPUClusterResolver",
    "tf.distribute.experimental.PreemptionCheckpointHandler": "tf.distribute.experimental.PreemptionCheckpointHandler",
    "tf.experimental.dtensor.Mesh": "tf.experimental.dtensor.Mesh",
    "tf.experimental.dtensor.Layout": "tf.experimental.dtensor.Layout",
    "tf.experimental.dtensor.DTensorDataset": "tf.experimental.dtensor.DTensorDataset",
    "tf.experimental.dtensor.DVariable": "tf.experimental.dtensor.DVariable",
    "tf.Variable": "tf.Variable",
    "tf.function": "tf.function",
    "tf.train.Checkpoint": "tf.train.Checkpoint",
    "tf.train.CheckpointManager": "tf.train.CheckpointManager",
    "tf.train.ClusterSpec": "tf.train.ClusterSpec",
}


def rule_of(row: Row, member: bool) -> Rule:
    """Returns the rule of a row; of a method or attribute (`member`) the target is only the last part."""
    if row.kind == "absent":
        return Refuse(row.note)
    target = row.here.rpartition(".")[2] if member else f"replicax.{row.here}"
    if row.keywords or row.order:
        return Call(target, row.keywords, row.order)
    return Rename(target)


def _owner(name: str) -> str | None:
    owner = name.rpartition(".")[0]
    return owner if owner in OWNERS else None


RULES = {name: rule_of(row, member=False) for name, row in NAMES.items()}
METHODS = {
    (OWNERS[owner], name.rpartition(".")[2]): rule_of(row, member=True)
    for name, row in NAMES.items()
    if (owner := _owner(name)) is not None
}
