"""Data parallelism with the state sharded over the devices."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from replicax.checks import checked_int, explained
from replicax.cluster import ClusterResolver
from replicax.collectives import CommunicationOptions, CrossDeviceOps, NcclAllReduce
from replicax.contracts.variable_access import VariableLike, shape_of
from replicax.group.health import DEFAULT_STALL_TIMEOUT_S
from replicax.layouts import MIN_SIZE, Decision, over_data
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.runtime.numbers import BLOCK_AXIS, checked_blocks
from replicax.runtime.precision import checked_precision
from replicax.strategies.mesh_placement import MeshPlacement, mesh_of_blocks
from replicax.strategies.mesh_strategy import MeshStrategy, checked_random_numbers
from replicax.strategies.offloading import offloaded
from replicax.strategies.workers import START_TIMEOUT_S


@explained
class FullyShardedStrategy(MeshStrategy):
    """Trains like `MirroredStrategy`, but between steps each device holds only a part of every large variable.

    Parameters and optimizer state are cut along one dimension, so with N devices each needs about 1/N of the memory.
    Where a step uses one it is gathered, once in the forward pass and once in the backward pass; of each gradient a
    device keeps its own shard, and it updates its shard of the parameter: stage 3 of ZeRO (Rajbhandari et al., 2020),
    as in PyTorch's FSDP. In `Model.fit` XLA places the gathering. In `run` a step sees whole variables, and each is
    gathered just when an operation uses it. A loop of JAX's (`jax.lax.scan`) over stacked weights uses all of them at
    once.

    In a cluster it trains on the devices of all workers, as `MultiWorkerMirroredStrategy` does: every worker runs the
    same program, makes the strategy at its top, and holds the shards of its own devices only. Reading a sharded
    variable (`numpy()`, `get_weights()`) and saving are then things that all workers do together.

    Args:
        devices: As for `MirroredStrategy`; those of this process, or of all that are connected. By default those of all
            workers, or without a cluster of this process.
        min_size: Variables with fewer elements are mirrored: cutting them saves little and costs a message. Variables
            without a dimension that the number of devices divides are mirrored too; `explain` tells.
        cross_device_ops: The algorithm that combines gradients in `run`; by default XLA's own, one gradient at a time.
        communication_options: Its options. Gradients that they pack are summed as a whole.
        cluster_resolver: Says who this process is; by default the environment does. See `MultiWorkerMirroredStrategy`.
        start_timeout: How long to wait for the other workers, in seconds.
        stall_timeout: For how many seconds a worker may do nothing while others wait for it, until all end with a
            report. None or 0 for no watching.
        offload_optimizer: Whether large optimizer state lives in the memory of the host between steps (JAX's memory
            kind `pinned_host`), and comes to the devices while a step updates it. The moving averages of `use_ema=True`
            stay on the devices. Numbers stay the same. Not tested on GPUs yet.
        random_numbers: Where random numbers in `run` come from, `"per_replica"` (the default) or `"per_row"`; see
            `MirroredStrategy`.
        precision: What Keras's layers made in the scope compute in; see `MirroredStrategy`.

    Raises:
        ArgumentError: `min_size` is not an int of at least 0; or the devices are those of some workers only.
        DeviceError: A device does not exist or comes twice, or JAX has no memory of the host beside it.
        ClusterError, ClusterTimeoutError, ContextError: As for `MultiWorkerMirroredStrategy`.

    Example:
        >>> import numpy as np
        >>> strategy = rx.FullyShardedStrategy(min_size=8)
        >>> with strategy.scope():
        ...     table = rx.Variable(np.zeros((16, 4), np.float32))
        >>> table.value.sharding.spec
        P('replica',)
    """

    waits_for_workers = True

    def __init__(
        self,
        devices: int | Sequence[str | jax.Device] | None = None,
        min_size: int = MIN_SIZE,
        cross_device_ops: CrossDeviceOps | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        cluster_resolver: ClusterResolver | None = None,
        start_timeout: float = START_TIMEOUT_S,
        stall_timeout: float | None = DEFAULT_STALL_TIMEOUT_S,
        offload_optimizer: bool = False,
        random_numbers: str | None = None,
        precision: str | None = None,
        numbers: str | None = None,
        blocks: int | None = None,
    ):
        self.min_size = checked_int("min_size", min_size, note=", a number of elements")
        self.blocks = checked_blocks(
            numbers, blocks, cross_device_ops=cross_device_ops, communication_options=communication_options
        )
        found = self._choose_devices(devices, communication_options, cluster_resolver, start_timeout, stall_timeout)
        if cross_device_ops is None and communication_options is None:
            cross_device_ops = NcclAllReduce(num_packs=0)  # Of a gradient in a pack no device could keep its shard.
        beside = offloaded(offload_optimizer, found, min_size)
        mesh, axes = mesh_of_blocks(found, self.blocks)
        self._shards = len(found)
        placement = MeshPlacement(mesh, axes, self._decide, self.workers, beside)
        super().__init__(placement, cross_device_ops, communication_options)
        self.random_numbers = checked_random_numbers(random_numbers)
        self.precision = checked_precision(precision, self.devices)

    def _what_is_sharded(self) -> str:
        return f"variables of at least {self.min_size:,} elements"

    def _decide(self, variable: VariableLike) -> Decision:
        axis = REPLICA_AXIS if self.blocks is None else BLOCK_AXIS
        return over_data(shape_of(variable), axis, self._shards, self.min_size)
