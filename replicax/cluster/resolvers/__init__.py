"""One resolver for each source that describes a cluster; one file each."""

from replicax.cluster.resolvers.base import ClusterResolver, Verdict
from replicax.cluster.resolvers.gce import GCEClusterResolver
from replicax.cluster.resolvers.hostlist import expand_hostlist, expand_tasks_per_node
from replicax.cluster.resolvers.jax_variables import JaxClusterResolver
from replicax.cluster.resolvers.kubernetes import KubernetesClusterResolver, KubernetesExecutableLocation
from replicax.cluster.resolvers.open_mpi import OpenMPIClusterResolver
from replicax.cluster.resolvers.own import ReplicaxClusterResolver
from replicax.cluster.resolvers.pmi import PMIClusterResolver
from replicax.cluster.resolvers.ranks import RankClusterResolver
from replicax.cluster.resolvers.sagemaker import SageMakerClusterResolver
from replicax.cluster.resolvers.simple import SimpleClusterResolver
from replicax.cluster.resolvers.slurm import SlurmClusterResolver
from replicax.cluster.resolvers.tf_config import TFConfigClusterResolver
from replicax.cluster.resolvers.torchrun import TorchrunClusterResolver
from replicax.cluster.resolvers.tpu import TPUClusterResolver
from replicax.cluster.resolvers.union import UnionResolver

__all__ = [
    "ClusterResolver",
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
    "TorchrunClusterResolver",
    "UnionResolver",
    "Verdict",
    "expand_hostlist",
    "expand_tasks_per_node",
]
