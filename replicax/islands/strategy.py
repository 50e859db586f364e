"""The common part of strategies whose workers train alone and synchronize now and then."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Callable, Sequence

import jax

import replicax.context as context
import replicax.group.membership.opening as membership
from replicax.checks import call
from replicax.cluster import ClusterConfig, ClusterResolver, cluster_of
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.contracts.variable_access import VariableLike, array_of
from replicax.data import DistributedDataset, DistributedDatasetFromFunction, InputContext, InputOptions
from replicax.errors import ArgumentError, ContextError
from replicax.group.health import stall_timeout_from, start
from replicax.group.membership.meeting import Meeting
from replicax.islands.all_workers import AllWorkers
from replicax.islands.batch_dealing import dealt, dealt_options
from replicax.islands.keras_loops import around_loop
from replicax.islands.local_variables import make_island_local, own_values
from replicax.islands.outer_optimizers import OuterOptimizer
from replicax.islands.rounds import Schedule
from replicax.islands.synchronizer import Synchronizer
from replicax.islands.values import Values
from replicax.runtime.devices import chosen_devices, device_name
from replicax.strategies import MirroredStrategy
from replicax.strategies.mesh_placement import MeshPlacement
from replicax.typing import PyTree, PyTreeFunction
from replicax.values.tracebacks import entry_point


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
        if not isinstance(elastic, bool):
            raise ArgumentError(f"`elastic` is True or False, got {elastic!r:.100}.")
        options = self._checked_options(communication_options)
        self.cluster_resolver, self.cluster = cluster_of(cluster_resolver)
        if meeting is None:
            meeting = open_meeting(self.cluster, start_timeout, stall_timeout, elastic)
        if options.compression not in (None, "bfloat16"):
            raise ArgumentError(
                "Between islands variables travel as they are, or with compression='bfloat16'; int8 and PowerSGD are "
                f"for gradients. Got compression={options.compression!r:.100}."
            )
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

    # Running.

    def around_loop(
        self, model: object, name: str, given: inspect.BoundArguments
    ) -> contextlib.AbstractContextManager[None] | None:
        """Returns what a loop of Keras runs in."""
        return around_loop(self, model, name, given)

    def counted(self, trains: bool, weight: float) -> contextlib.AbstractContextManager[None]:
        """Returns what a program that assigns variables runs in; `weight` is how much work it is."""
        return self._sync.counted(trains, weight)

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
        # Operation by operation, the variables that a function assigns are known when it has done so.
        with self._sync.turn():
            self._sync.before(trains=True)
            trained = [v for v in self._sync.registry.trained() if array_of(v) is not None]
            before = [array_of(variable) for variable in trained]
            result = super()._on_replicas(fn, args, kwargs, donate, in_replica_context)
            trains = any(array_of(variable) is not array for variable, array in zip(trained, before, strict=True))
            self._sync.after(trains, 1.0)
            return result

    # Variables and data.

    def adopt(self, variable: VariableLike) -> None:
        """Makes a new variable island-local."""
        if make_island_local(variable, self._sync):
            self._sync.registry.add(variable)

    def distribute_dataset(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> DistributedDataset:
        """Deals the batches of `dataset` to the islands, and splits each over the replicas of its island."""
        options = InputOptions() if options is None else options
        source, batch_size = dealt(dataset, options, batch_size, self.island_index, self.num_islands)
        return super().distribute_dataset(source, dealt_options(options), batch_size=batch_size)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], PyTree], options: InputOptions | None = None
    ) -> DistributedDatasetFromFunction:
        """Distributes the per-replica batches of the dataset that `dataset_fn` returns for this island."""

        def of_island(own: InputContext) -> PyTree:
            context = dataclasses.replace(
                own, num_input_pipelines=self.num_islands, input_pipeline_id=self.island_index
            )
            return call("dataset_fn", dataset_fn, (context,))

        return super().distribute_datasets_from_function(of_island if callable(dataset_fn) else dataset_fn, options)

    # The islands.

    @property
    def num_islands(self) -> int:
        """Number of islands, if none is lost."""
        return self._sync.meeting.size

    @property
    def island_index(self) -> int:
        """Number of this island among them, from 0."""
        return self._sync.meeting.index

    @property
    def num_workers(self) -> int:
        """The same as `num_islands`."""
        return self.num_islands

    @property
    def worker_index(self) -> int:
        """The same as `island_index`."""
        return self.island_index

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

    @entry_point
    def barrier(self, name: str = "barrier") -> None:
        """Refuses where there are several islands, which do not wait for each other by name; see `synchronize`."""
        if self.num_islands > 1:
            raise ContextError(
                f"strategy.barrier({name!r}): islands do not wait for each other by name. strategy.synchronize() waits "
                "for all of them, and makes their variables equal."
            )
        super().barrier(name)

    def lower_exchange(self) -> list[jax.stages.Lowered]:
        """Returns the programs with which fragments are summed over the islands, as JAX lowers them, to look at them.

        Raises:
            ContextError: The strategy is `elastic`: then the programs are made anew for whoever takes part. Or there is
                only one island.
        """
        if self.num_islands == 1:
            raise ContextError("One island exchanges nothing, so there is no program. Ask in a job of several islands.")
        lower = getattr(self._sync.meeting, "lower", None)
        if lower is None:
            raise ContextError("Exchanges of an elastic strategy have no program of their own. Give elastic=False.")
        fragments = range(self._sync.progress.schedule.fragments)
        return [lower(self._sync.example_of(fragment).arrays) for fragment in fragments]

    def own_values(self) -> contextlib.AbstractContextManager[None]:
        """Lets Python read this island's own values of variables in a `with` block, which may differ from others'."""
        return own_values()

    def add_up_metrics(self) -> None:
        """Gives metrics the totals over all islands, and leaves everything else; all islands call it.

        Raises:
            BarrierTimeoutError: An island that is up did not come in time.
        """
        with self._sync.turn():
            self._sync.meet("counts", ())

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
            CheckpointError: It is of another outer optimizer.
        """
        self._sync.set_state(state)

    def _facts(self) -> dict[str, object]:
        return {"island": f"{self.island_index} of {self.num_islands}", **super()._facts()}

    def __repr__(self) -> str:
        names = ", ".join(device_name(device) for device in self.devices)
        return f"{type(self).__name__}(island {self.island_index} of {self.num_islands}: [{names}])"


class _IslandPlacement(MeshPlacement):
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


# Where the islands of a job meet.


def open_meeting(cluster: ClusterConfig, start_timeout: float, stall_timeout: float | None, elastic: bool) -> Meeting:
    """Returns the meeting of the workers of a cluster, which may be lost and come again if it is `elastic`."""
    patience = stall_timeout_from(stall_timeout)
    if elastic or cluster.num_processes == 1:
        return membership.open_meeting(cluster, start_timeout, patience)
    members = start(cluster, start_timeout, patience)
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    return AllWorkers([member.name for member in members], cluster.process_id, [firsts[i] for i in sorted(firsts)])
