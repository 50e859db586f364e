"""Asynchronous training on Ray: variables on servers, steps on workers, one coordinator. Ray is imported when used."""

from replicax.parameter_server.cluster import Server
from replicax.parameter_server.coordinator import ClusterCoordinator
from replicax.parameter_server.partition import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
)
from replicax.parameter_server.sharded_variable import ShardedVariable
from replicax.parameter_server.strategy import ParameterServerStrategy

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
