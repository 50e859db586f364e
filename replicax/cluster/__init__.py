"""Who am I: the cluster, and this process's place in it, read from the environment. Nothing here starts anything."""

from typing import TYPE_CHECKING, Any

from replicax.cluster.addresses import Address, parse_address
from replicax.cluster.config import ROLES, ClusterConfig, check_roles, check_synchronous
from replicax.cluster.detect import PRECEDENCE, Candidate, Detection, detect_cluster, find_cluster, found_cluster
from replicax.cluster.resolvers import (
    ClusterResolver,
    GCEClusterResolver,
    JaxClusterResolver,
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
    OpenMPIClusterResolver,
    PMIClusterResolver,
    RankClusterResolver,
    ReplicaxClusterResolver,
    SageMakerClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TorchrunClusterResolver,
    TPUClusterResolver,
    UnionResolver,
    expand_hostlist,
    expand_tasks_per_node,
)
from replicax.cluster.spec import ClusterSpec, Task
from replicax.migration import not_found

__all__ = [
    "PRECEDENCE",
    "ROLES",
    "Address",
    "Candidate",
    "ClusterConfig",
    "ClusterResolver",
    "ClusterSpec",
    "Detection",
    "GCEClusterResolver",
    "JaxClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "OpenMPIClusterResolver",
    "PMIClusterResolver",
    "RankClusterResolver",
    "ReplicaxClusterResolver",
    "SageMakerClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "Task",
    "TorchrunClusterResolver",
    "UnionResolver",
    "check_roles",
    "check_synchronous",
    "detect_cluster",
    "expand_hostlist",
    "expand_tasks_per_node",
    "find_cluster",
    "found_cluster",
    "parse_address",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise not_found("replicax.cluster_resolver", name)
