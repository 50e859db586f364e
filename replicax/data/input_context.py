"""What a user's function is told about the replica or pipeline that it makes data for."""

from __future__ import annotations

import dataclasses

from replicax.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class InputContext:
    """What a `dataset_fn` is told, so that it can batch and shard its data.

    Attributes:
        num_input_pipelines: Number of pipelines (one a process) that together feed all replicas.
        input_pipeline_id: Which of them this is, from 0.
        num_replicas_in_sync: Number of replicas over all pipelines.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns how many of the `global_batch_size` rows of a step go to each replica.

        Raises:
            ArgumentError: The rows cannot be shared out evenly (the message names the nearest sizes that can).

        Example:
            >>> InputContext(num_replicas_in_sync=4).get_per_replica_batch_size(128)
            32
        """
        replicas = self.num_replicas_in_sync
        if isinstance(global_batch_size, bool) or not isinstance(global_batch_size, int) or global_batch_size < 1:
            raise ArgumentError(f"A global batch size is an int of at least 1, got {global_batch_size!r}.")
        per_replica, remainder = divmod(global_batch_size, replicas)
        if remainder:
            fits = [size * replicas for size in (per_replica, per_replica + 1) if size]
            raise ArgumentError(
                f"A global batch of {global_batch_size} rows cannot be shared evenly by {replicas} replicas; "
                f"the nearest that can: {' or '.join(map(str, fits))}."
            )
        return per_replica


@dataclasses.dataclass(frozen=True)
class ValueContext:
    """What a `value_fn` is told about the replica that it makes a value for.

    Attributes:
        replica_id_in_sync_group: Which replica, from 0 to `num_replicas_in_sync - 1`.
        num_replicas_in_sync: Number of replicas.
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1
