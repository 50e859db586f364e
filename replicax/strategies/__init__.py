"""Strategies: where training runs and how its parts are put together."""

from replicax.strategies.ambient import (
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
    set_strategy,
)
from replicax.strategies.base import Strategy
from replicax.strategies.central_storage import CentralStorageStrategy
from replicax.strategies.fully_sharded import FullyShardedStrategy
from replicax.strategies.gradient_memory import GradientMemory
from replicax.strategies.layout import LayoutStrategy
from replicax.strategies.mirrored import MirroredStrategy
from replicax.strategies.multi_worker import MultiWorkerMirroredStrategy
from replicax.strategies.one_device import OneDeviceStrategy
from replicax.strategies.replica_context import ReplicaContext
from replicax.strategies.tpu import TPUStrategy

__all__ = [
    "CentralStorageStrategy",
    "FullyShardedStrategy",
    "GradientMemory",
    "LayoutStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ReplicaContext",
    "Strategy",
    "TPUStrategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "set_strategy",
]
