"""The cluster and the place of this process in it, read from the environment. Nothing here starts anything."""

from typing import TYPE_CHECKING

from replicax.cluster.addresses import Address as Address, parse_address as parse_address
from replicax.cluster.config import (
    ROLES as ROLES,
    ClusterConfig,
    check_roles as check_roles,
    check_synchronous as check_synchronous,
)
from replicax.cluster.detect import (
    PRECEDENCE as PRECEDENCE,
    Candidate as Candidate,
    Detection,
    cluster_of as cluster_of,
    detect_cluster,
    find_cluster as find_cluster,
    found_cluster as found_cluster,
)
from replicax.cluster.resolvers import (
    ClusterResolver,
    GCEClusterResolver,
    JaxClusterResolver,
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
    OpenMPIClusterResolver,
    PMIClusterResolver,
    RankClusterResolver as RankClusterResolver,
    ReplicaxClusterResolver,
    SageMakerClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TorchrunClusterResolver,
    TPUClusterResolver,
    UnionResolver,
    expand_hostlist as expand_hostlist,
    expand_tasks_per_node as expand_tasks_per_node,
)
from replicax.cluster.spec import ClusterSpec, Task
from replicax.contracts.advice import not_found

__all__ = [
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
    "ReplicaxClusterResolver",
    "SageMakerClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "Task",
    "TorchrunClusterResolver",
    "UnionResolver",
    "detect_cluster",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise not_found("replicax.cluster_resolver", name)
