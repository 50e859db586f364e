"""Callbacks and tools for Keras models. Importing this does not import Keras."""

from typing import TYPE_CHECKING, Any

from replicax.keras.clipping import clip_by_global_norm, clip_by_norm, global_norm

if TYPE_CHECKING:
    from replicax.keras.batch_normalization import synchronize_batch_normalization
    from replicax.keras.sidecar import SidecarEvaluator
    from replicax.tables.growing import GrowingTable
    from replicax.tables.hashing import hashed_ids

__all__ = [
    "BackupAndRestore",
    "BatchNormalization",
    "DistributedEmbedding",
    "GrowingTable",
    "ReplicaDigest",
    "SidecarEvaluator",
    "TensorBoard",
    "clip_by_global_norm",
    "clip_by_norm",
    "global_norm",
    "hashed_ids",
    "synchronize_batch_normalization",
]


def __getattr__(name: str) -> Any:
    """Loads what strategies do not need, and makes the Keras callbacks, when they are first asked for."""
    if name == "DistributedEmbedding":
        from replicax.tables.layer import distributed_embedding_class

        return distributed_embedding_class()
    if name == "GrowingTable":
        from replicax.tables.growing import GrowingTable

        return GrowingTable
    if name == "hashed_ids":
        from replicax.tables.hashing import hashed_ids

        return hashed_ids
    if name == "BackupAndRestore":
        from replicax.keras.backup import backup_class

        return backup_class()
    if name == "BatchNormalization":
        from replicax.keras.batch_normalization import batch_normalization_class

        return batch_normalization_class()
    if name == "synchronize_batch_normalization":
        from replicax.keras.batch_normalization import synchronize_batch_normalization

        return synchronize_batch_normalization
    if name == "TensorBoard":
        from replicax.keras.tensorboard import tensorboard_class

        return tensorboard_class()
    if name == "ReplicaDigest":
        from replicax.keras.replica_digest import digest_class

        return digest_class()
    if name == "SidecarEvaluator":
        from replicax.keras.sidecar import SidecarEvaluator

        return SidecarEvaluator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names."""
    return sorted(__all__)
