"""Asynchronous training on Ray: variables on servers, steps on workers, one coordinator. Ray is imported when used."""

from replicax.parameter_server.coordinator import ClusterCoordinator
from replicax.parameter_server.strategy import ParameterServerStrategy
from replicax.parameter_server.variables.partition import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
)
from replicax.parameter_server.variables.sharded import ShardedVariable
from replicax.ray_cluster import Server

__all__ = [
    "ClusterCoordinator",
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "ParameterServerStrategy",
    "Partitioner",
    "Server",
    "ShardedVariable",
]
