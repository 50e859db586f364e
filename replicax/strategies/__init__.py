"""Strategies: where training runs and how its parts are put together."""

from replicax.strategies.ambient import (
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
    set_strategy,
)
from replicax.strategies.base import Strategy
from replicax.strategies.fully_sharded import FullyShardedStrategy
from replicax.strategies.layout import LayoutStrategy
from replicax.strategies.mirrored import MirroredStrategy
from replicax.strategies.one_device import OneDeviceStrategy
from replicax.strategies.replica_context import ReplicaContext

__all__ = [
    "FullyShardedStrategy",
    "LayoutStrategy",
    "MirroredStrategy",
    "OneDeviceStrategy",
    "ReplicaContext",
    "Strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "set_strategy",
]
