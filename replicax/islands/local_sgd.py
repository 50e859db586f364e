"""Local SGD: islands that take the mean of their models after every H steps."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from replicax.cluster import ClusterResolver
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.group.health import DEFAULT_STALL_TIMEOUT_S
from replicax.group.membership.meeting import Meeting
from replicax.islands.outer_optimizers import Averaging
from replicax.islands.rounds import Schedule
from replicax.islands.strategy import IslandStrategy
from replicax.strategies.workers import START_TIMEOUT_S


class LocalSGDStrategy(IslandStrategy):
    """Workers that train alone and take the mean of their models after every H steps (Stich 2018, arXiv:1805.09767).

    Each worker process is an *island*. It trains on its own batches, mirrored over its own devices, and talks to
    nobody; after every `every` steps the islands take the mean of their variables. So they send 1/H of the bytes of
    `MultiWorkerMirroredStrategy`. The steps are the same: `num_replicas_in_sync`, and the global batch that a loss is
    divided by, are those of one island, and `distribute_dataset` deals whole batches to the islands.

    Args:
        every: The number of steps between two synchronizations, H. With 1 and plain SGD the numbers are those of
            `MultiWorkerMirroredStrategy` with the islands' batches as one.
        optimizer_state: `"own"`: each island keeps its optimizer's state (momentum, say); `"mean"`: it is averaged.
        cluster_resolver: Says who this process is; by default the environment does, as for
            `MultiWorkerMirroredStrategy`.
        devices: The devices of this island; by default all of this process.
        communication_options: With `compression="bfloat16"` the changes of trained variables travel as bfloat16.
        cross_device_ops: The algorithm that combines gradients inside an island.
        start_timeout: How long to wait for the other workers, in seconds.
        stall_timeout: How long to wait for an island that does not come, in seconds.
        elastic: Whether islands may be lost and come again while the others train on. Otherwise all devices are
            connected by `jax.distributed`, the sums are collectives of the devices, and a lost island ends the job.
        meeting: Where the islands meet instead, for islands that are no workers of a cluster.

    Raises:
        ArgumentError: An argument has the wrong type or value.
        ClusterError: What the cluster is told about is malformed or contradicts itself.
        ClusterTimeoutError: Not all workers came in time.

    Example:
        >>> strategy = LocalSGDStrategy(every=8, devices=["cpu:0"])  # no cluster here: one island
        >>> strategy.num_islands, strategy.num_replicas_in_sync, strategy.step_in_round
        (1, 1, 0)
    """

    def __init__(
        self,
        every: int,
        *,
        optimizer_state: str = "own",
        cluster_resolver: ClusterResolver | None = None,
        devices: int | Sequence[str | jax.Device] | None = None,
        communication_options: CommunicationOptions | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        start_timeout: float = START_TIMEOUT_S,
        stall_timeout: float | None = DEFAULT_STALL_TIMEOUT_S,
        elastic: bool = True,
        meeting: Meeting | None = None,
    ):
        schedule = Schedule(every)
        super().__init__(
            schedule,
            Averaging(),
            optimizer_state,
            cluster_resolver,
            devices,
            communication_options,
            cross_device_ops,
            start_timeout,
            stall_timeout,
            elastic,
            meeting,
        )
