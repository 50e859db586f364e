"""DiLoCo: an outer optimizer over what islands have changed in H steps."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from replicax.cluster import ClusterResolver
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.group.health import DEFAULT_STALL_TIMEOUT_S
from replicax.group.membership.meeting import Meeting
from replicax.islands.outer_optimizers import outer_optimizer as outer_of
from replicax.islands.rounds import Schedule
from replicax.islands.strategy import IslandStrategy
from replicax.strategies.workers import START_TIMEOUT_S


class DiLoCoStrategy(IslandStrategy):
    """Islands that train alone, and an outer optimizer over their changes (Douillard et al. 2023, arXiv:2311.08105).

    After every `every` steps the mean of the islands' changes becomes the gradient of an outer optimizer, which
    updates the values that the round began with; all islands go on from there. Each keeps its own optimizer's state.
    As with `LocalSGDStrategy`, steps are those of one island.

    With `fragments=P` a part of the variables is synchronized after every `every / P` steps, so that the bytes are
    spread over the round (Streaming DiLoCo, Douillard et al. 2025, arXiv:2501.18512).

    Args:
        every: Steps of a round, H; the paper has 500, and 50 loses little.
        outer_optimizer: An optimizer of Keras or a transformation of optax; by default SGD with a learning rate of 0.7
            and Nesterov momentum of 0.9.
        fragments: Number of parts that are synchronized one after another.
        optimizer_state: `"own"`, as in the paper, or `"mean"`; see `LocalSGDStrategy`, also for the other arguments.
        cluster_resolver: Says who this process is.
        devices: The devices of this island.
        communication_options: With `compression="bfloat16"` changes travel as bfloat16.
        cross_device_ops: The algorithm that combines gradients inside an island.
        start_timeout: How long to wait for the other workers, in seconds.
        stall_timeout: How long to wait for an island that does not come, in seconds.
        elastic: Whether islands may be lost and come again.
        meeting: Where the islands meet instead.

    Raises:
        ArgumentError: An argument has the wrong type or value.
        ClusterError: What the cluster is told about is malformed or contradicts itself.
        ClusterTimeoutError: Not all workers came in time.

    Example:
        >>> strategy = DiLoCoStrategy(every=50, fragments=5, devices=["cpu:0"])
        >>> strategy.num_islands
        1
    """

    def __init__(
        self,
        every: int,
        *,
        outer_optimizer: object = None,
        fragments: int = 1,
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
        schedule, outer = Schedule(every, fragments), outer_of(outer_optimizer)
        super().__init__(
            schedule,
            outer,
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
