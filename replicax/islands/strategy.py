"""Strategies whose workers train alone and synchronize now and then: local SGD, and DiLoCo."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Callable, Sequence

import jax

import replicax.context as context
from replicax.cluster import ClusterConfig, ClusterResolver, find_cluster
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.data import DistributedDataset, DistributedDatasetFromFunction, InputContext, InputOptions
from replicax.errors import ArgumentError, ContextError
from replicax.health import DEFAULT_STALL_TIMEOUT_S
from replicax.islands.dealing import dealt, dealt_options
from replicax.islands.keras_loops import around_loop
from replicax.islands.local_variables import make_island_local, own_values
from replicax.islands.opening import open_meeting
from replicax.islands.outer import Averaging, OuterOptimizer, outer_optimizer
from replicax.islands.rounds import Schedule
from replicax.islands.synchronizer import Synchronizer
from replicax.islands.values import Values
from replicax.membership import Meeting
from replicax.runtime.devices import chosen_devices, device_name
from replicax.strategies import MirroredStrategy
from replicax.strategies.placement import Placement
from replicax.typing import PyTree, PyTreeFunction
from replicax.variable_access import VariableLike, array_of

_START_TIMEOUT_S = 300.0


class IslandStrategy(MirroredStrategy):
    """The common part of `LocalSGDStrategy` and `DiLoCoStrategy`."""

    waits_for_workers = True
    counts_steps = True

    def __init__(
        self,
        schedule: Schedule,
        outer: OuterOptimizer,
        optimizer_state: str,
        cluster_resolver: ClusterResolver | None,
        devices: int | Sequence[str | jax.Device] | None,
        communication_options: CommunicationOptions | None,
        cross_device_ops: CrossDeviceOps | None,
        start_timeout: float,
        stall_timeout: float | None,
        elastic: bool,
        meeting: Meeting | None,
    ):
        if optimizer_state not in ("own", "mean"):
            raise ArgumentError(f"`optimizer_state` must be 'own' or 'mean', got {optimizer_state!r:.100}.")
        options = self._checked_options(communication_options)
        self.cluster_resolver, self.cluster = _found(cluster_resolver)
        if meeting is None:
            meeting = open_meeting(self.cluster, start_timeout, stall_timeout, elastic)
        inside = dataclasses.replace(options, compression=None)  # Between an island's own devices nothing is slow.
        super().__init__(devices, cross_device_ops, inside)
        self.placement = _IslandPlacement(self, chosen_devices(devices))
        self._sync = Synchronizer(
            meeting,
            schedule,
            outer,
            averages_slots=optimizer_state == "mean",
            compressed=options.compression == "bfloat16",
            values=Values(self.placement, self.devices[0]),
            replicas=self.placement.replicas,
        )

    # Who takes part.

    @property
    def num_islands(self) -> int:
        """Number of islands, if none is lost."""
        return self._sync.meeting.size

    @property
    def island_index(self) -> int:
        """Number of this island among them, from 0."""
        return self._sync.meeting.index

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes logs and the like."""
        return self.island_index == 0

    # Rounds.

    @property
    def step_in_round(self) -> int:
        """How many steps of the present round this island has made: 0 after a synchronization of everything."""
        return self._sync.now().step

    @property
    def steps(self) -> int:
        """How many training steps this island has made; one that has joined counts on from the others' steps."""
        return self._sync.now().steps

    @property
    def bytes_exchanged(self) -> int:
        """The bytes of all arrays that this island has given to exchanges."""
        return self._sync.num_bytes

    def synchronize(self) -> None:
        """Makes the variables equal on all islands, and ends the round; all islands call it.

        Whoever comes first waits; while others still make steps, it takes part in their synchronizations. Metrics
        then have the totals over all islands. Call it at the end of training, and before reading what may differ.

        Raises:
            ContextError: It was called in a step.
            BarrierTimeoutError: An island that is up did not come in time.
            ValuesMismatchError: The islands have different variables.
        """
        current = context.current()
        if current.frame is not None or current.replica is not None:
            raise ContextError("strategy.synchronize() was called in a step. Call it between steps.")
        self._sync.synchronize()

    def own_values(self) -> contextlib.AbstractContextManager[None]:
        """Lets Python read this island's own values of variables in a `with` block, which may differ from others'."""
        return own_values()

    def add_up_metrics(self) -> None:
        """Gives metrics the totals over all islands, and leaves everything else; all islands call it.

        Raises:
            BarrierTimeoutError: An island that is up did not come in time.
        """
        self._sync.meet("counts", ())

    def around_loop(
        self, model: object, name: str, given: inspect.BoundArguments
    ) -> contextlib.AbstractContextManager[None] | None:
        """Returns what a loop of Keras runs in."""
        return around_loop(self, model, name, given)

    def before_program(self, trains: bool) -> None:
        """Is called before a program runs that assigns variables."""
        self._sync.before(trains)

    def after_program(self, trains: bool, weight: float) -> None:
        """Is called when such a program has run; `weight` is how much work it was."""
        self._sync.after(trains, weight)

    def _on_replicas(
        self,
        fn: PyTreeFunction,
        args: tuple[PyTree, ...],
        kwargs: dict[str, PyTree],
        donate: tuple[int, ...],
        in_replica_context: bool,
    ) -> PyTree:
        if not context.runs_eagerly() or context.current().frame is not None:
            return super()._on_replicas(fn, args, kwargs, donate, in_replica_context)
        # Operation by operation, nobody knows what a function assigns before it has done so.
        self._sync.before(trains=True)
        trained = [v for v in self._sync.registry.trained() if array_of(v) is not None]
        before = [array_of(variable) for variable in trained]
        result = super()._on_replicas(fn, args, kwargs, donate, in_replica_context)
        trains = any(array_of(variable) is not array for variable, array in zip(trained, before, strict=True))
        self._sync.after(trains, 1.0)
        return result

    # Checkpoints.

    def checkpoint_folder(self, path: str | os.PathLike[str]) -> str:
        """Returns the folder in `path` for this island's checkpoints: each island writes its own.

        Without `elastic` it is `path` itself: then all islands write one checkpoint together.
        """
        own = jax.process_count() == 1 and self.num_islands > 1
        return os.path.join(path, f"island-{self.island_index}") if own else os.fspath(path)

    def get_state(self) -> PyTree:
        """Returns what a checkpoint in the middle of a round needs besides the variables, for `rx.Checkpoint`.

        That is how far this island is, the values that the round began with, and the outer optimizer's state. Give the
        strategy to the checkpoint: `rx.Checkpoint(model=model, optimizer=optimizer, strategy=strategy)`.
        """
        return self._sync.get_state()

    def set_state(self, state: PyTree) -> None:
        """Goes on where `get_state` was called.

        Raises:
            ArgumentError: The state is of other rounds or fragments.
        """
        self._sync.set_state(state)

    # Variables and data.

    def adopt(self, variable: VariableLike) -> None:
        """Makes a new variable island-local."""
        if make_island_local(variable, self._sync):
            self._sync.registry.add(variable)

    def distribute_dataset(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> DistributedDataset:
        """Deals the batches of `dataset` to the islands, and splits each over the replicas of its island."""
        options = options or InputOptions()
        source, batch_size = dealt(dataset, options, batch_size, self.island_index, self.num_islands)
        return super().distribute_dataset(source, dealt_options(options), batch_size=batch_size)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], PyTree], options: InputOptions | None = None
    ) -> DistributedDatasetFromFunction:
        """Distributes the per-replica batches of the dataset that `dataset_fn` returns for this island."""

        def of_island(own: InputContext) -> PyTree:
            return dataset_fn(
                dataclasses.replace(own, num_input_pipelines=self.num_islands, input_pipeline_id=self.island_index)
            )

        return super().distribute_datasets_from_function(of_island if callable(dataset_fn) else dataset_fn, options)

    def __repr__(self) -> str:
        names = ", ".join(device_name(device) for device in self.devices)
        return f"{type(self).__name__}(island {self.island_index} of {self.num_islands}: [{names}])"


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
        meeting: Where the islands meet instead, for islands that are no workers of a cluster; see `rx.testing`.

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
        start_timeout: float = _START_TIMEOUT_S,
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
        start_timeout: float = _START_TIMEOUT_S,
        stall_timeout: float | None = DEFAULT_STALL_TIMEOUT_S,
        elastic: bool = True,
        meeting: Meeting | None = None,
    ):
        schedule, outer = Schedule(every, fragments), _outer(outer_optimizer)
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


_outer = outer_optimizer  # `DiLoCoStrategy` has an argument of this name.


class _IslandPlacement(Placement):
    """The placement of an island: it has nothing to do with other processes."""

    def __init__(self, strategy: IslandStrategy, devices: Sequence[jax.Device]):
        self._strategy = strategy
        super().__init__(devices)

    @property
    def is_chief(self) -> bool:
        """Whether this is the first island, which writes for all."""
        return self._strategy.is_chief

    def initialize(self, variable: VariableLike, value: jax.typing.ArrayLike) -> None:
        """Gives a variable its first value; it is island-local from then on."""
        self._strategy.adopt(variable)
        super().initialize(variable, value)


def _found(resolver: ClusterResolver | None) -> tuple[ClusterResolver | None, ClusterConfig]:
    if resolver is not None and not isinstance(resolver, ClusterResolver):
        raise ArgumentError(f"`cluster_resolver` is a ClusterResolver, got {resolver!r:.100}.")
    if resolver is not None:
        return resolver, resolver.config()
    found = find_cluster()
    return found.resolver, found.config
