"""`ParameterServerStrategy`: asynchronous training with variables on servers, steps on workers, and one coordinator."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, cast

import jax
import numpy as np

import replicax.context as context
from replicax.checks import call, checked_int, checked_seconds
from replicax.cluster import ClusterResolver
from replicax.collectives import CommunicationOptions
from replicax.contracts.called_as import called_as
from replicax.contracts.placement import Placement
from replicax.contracts.reduce_op import ReduceOp
from replicax.contracts.variable_access import VariableLike, dtype_of, is_per_worker, name_of, set_array, shape_of
from replicax.data import InputContext, InputOptions, ValueContext
from replicax.errors import ArgumentError, ContextError
from replicax.parameter_server.actors.created_rows import CreatedRows
from replicax.parameter_server.actors.messages import ShardId
from replicax.parameter_server.actors.workers_dataset import WorkersDataset
from replicax.parameter_server.compiling.creating import created_rows
from replicax.parameter_server.compiling.placing import Choice, VariablePlacer
from replicax.parameter_server.compiling.recording import recorder
from replicax.parameter_server.keras.loops import KerasLoops
from replicax.parameter_server.per_worker import PerWorkerVariable, keep_on_each_worker
from replicax.parameter_server.scheduling.server_actors import ServerActors
from replicax.parameter_server.variables.partition import count_shards
from replicax.parameter_server.variables.remote import Home, RemoteVariable, home_of, move_to_servers, variable_bytes
from replicax.parameter_server.variables.sharded import ShardedVariable
from replicax.program.call_checks import called, check_function
from replicax.ray_cluster import connect, serve_if_task
from replicax.ray_cluster.deadline import PATIENCE
from replicax.runtime.ending import only_here
from replicax.strategies.base import Strategy
from replicax.strategies.no_strategy import DefaultStrategy, default_replica_context, default_strategy
from replicax.strategies.reductions import values_of
from replicax.strategies.replica_context import ReplicaContext
from replicax.tables.marks import grows, index_of, is_table, take_marks
from replicax.typing import PyTree, PyTreeFunction

if TYPE_CHECKING:
    import keras

    from replicax.parameter_server.coordinator import ClusterCoordinator

_log = logging.getLogger(__name__)


class ParameterServerStrategy(Strategy):
    """Trains asynchronously: servers keep the variables, workers compute on their own data, at their own pace.

    The process that makes the strategy is the *coordinator*, the only one that runs your code. It traces each function
    that a `ClusterCoordinator` schedules, splits it at its gradients, and sends programs: workers get the forward and
    backward pass, servers the optimizer's update. A worker pulls variables, computes, and pushes gradients, which are
    applied at once; so gradients may be of variables that are a few updates old.

    The first of these that is given determines where servers and workers run: `cluster_resolver`, `address`, `workers`
    and `servers`, `replicax run --ps 2 --workers 3 script.py`, `TF_CONFIG`. In a process that
    `TF_CONFIG` calls a worker or server the constructor serves until the job ends, and then ends the process: all
    machines can run the same script.

    Args:
        cluster_resolver: The addresses of all tasks: `chief`, `worker` and `ps`.
        variable_partitioner: Shards large variables over the servers: see `rx.FixedShardsPartitioner` and the like.
        workers: How many workers, for a cluster of this machine alone or with `address`.
        servers: How many servers; 1 by default.
        address: A Ray cluster: `"auto"`, `"host:port"` or `"ray://host:port"`.
        max_staleness: By how many updates the variables may be behind when an update computed from them is applied.
            None for any number; 0 makes one step after the other, as one device would.
        variable_placement: Returns the index of the server for a variable, or None to let its size decide.
        lazy_rows: Whether an optimizer updates only those rows of a large table (an embedding) that a step has looked
            up. That is exact, and done anyway, where a zero gradient changes nothing: SGD, Adagrad. Adam's momentum
            moves all rows, so without this its servers do; with it they compute less, and not quite the same.
        start_timeout: How long to wait for the cluster, in seconds.
        stall_timeout: After how many seconds without an answer a worker or server counts as hung, and is replaced.
        dashboard: Whether a cluster of this process's own shows Ray's dashboard, at a loopback address.

    Raises:
        ClusterError: The description of the cluster is malformed, there is no cluster, or Ray is not installed.
        ClusterTimeoutError: Some tasks did not come in time; the message names them.

    Attributes:
        cluster: The Ray cluster.
        cluster_resolver: The resolver that named its tasks, given or found; None if counts or an address did.
        max_staleness: As given.
        stall_timeout: As given.
        start_timeout: As given.

    Example:
        >>> strategy = rx.ParameterServerStrategy(workers=2, servers=1)  # doctest: +SKIP
        >>> with strategy.scope():  # doctest: +SKIP
        ...     total = rx.Variable(0.0)
    """

    mesh = None
    #: Whether steps are scheduled on workers that are not synchronized.
    is_asynchronous = True

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        variable_partitioner: Callable[..., list[int]] | None = None,
        *,
        workers: int | None = None,
        servers: int | None = None,
        address: str | None = None,
        max_staleness: int | None = None,
        variable_placement: Choice | None = None,
        lazy_rows: bool = False,
        start_timeout: float = PATIENCE.start,
        stall_timeout: float = PATIENCE.stall,
        dashboard: bool = True,
    ):
        _check_options(variable_partitioner, max_staleness, stall_timeout)
        if workers is None and address is None:
            serve_if_task(cluster_resolver)
        self._partitioner = variable_partitioner
        self.max_staleness, self.stall_timeout, self.lazy_rows = max_staleness, stall_timeout, lazy_rows
        self.start_timeout = start_timeout
        self.patience = PATIENCE._replace(start=start_timeout, stall=stall_timeout)
        self.cluster = connect(
            cluster_resolver,
            workers=workers,
            servers=servers,
            address=address,
            patience=self.patience,
            dashboard=dashboard,
        )
        self.cluster_resolver = self.cluster.resolver
        self._ending = contextlib.ExitStack()
        self._ending.callback(self.cluster.close)
        # This must run before the connection ends: a thread that goes on would make Ray start another cluster.
        self._at_exit = only_here(functools.partial(_close, weakref.ref(self)))
        atexit.register(self._at_exit)
        self.servers = ServerActors(self.cluster, self.patience)
        self._ending.callback(self.servers.close)
        self.placer = VariablePlacer(len(self.servers), variable_placement)
        self.placement = _ServerPlacement(self)
        self._numbers = itertools.count()
        self._homes: dict[int, weakref.ref[VariableLike]] = {}
        self.coordinator: ClusterCoordinator | None = None

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The device on which the coordinator computes what is not scheduled."""
        return tuple(jax.local_devices()[:1])

    @property
    def num_replicas_in_sync(self) -> int:
        """1: workers are not synchronized."""
        return 1

    # Variables.

    def adopt(self, variable: VariableLike) -> None:
        """Stores a new variable on servers; it has a shape and a dtype, and gets its value next."""
        if "_replicax_home" in vars(variable):
            return
        home, shape = Home(next(self._numbers), self.servers), shape_of(variable)
        if is_table(variable) or index_of(variable) is not None:
            shards = min(len(self.servers), shape[0])
        else:
            shards = count_shards(self._partitioner, shape, dtype_of(variable), name_of(variable))
        home.shard(shape[0] if shape else 0, shards)
        move_to_servers(variable, home, ShardedVariable if len(home.bounds) > 1 else RemoteVariable)
        self._homes[home.number] = weakref.ref(variable, lambda _: self._homes.pop(home.number, None))

    def creates(self, variable: VariableLike, initializer: Callable[..., jax.Array]) -> bool:
        """Lets servers compute the first value of a large variable, each its own rows; returns whether they will."""
        take_marks(variable, initializer)  # before it is adopted: that shards it
        rows = created_rows(variable, initializer)
        if rows is None:
            return False
        self.adopt(variable)
        home_of(variable).create(rows)
        home_of(variable).row_code = rows.code if grows(variable) else None
        return True

    def variables(self) -> list[VariableLike]:
        """Returns all variables made in the strategy's scope that are still in use."""
        return [variable for reference in list(self._homes.values()) if (variable := reference()) is not None]

    def send_changes(self, variables: Sequence[VariableLike]) -> None:
        """Gives servers the values that were assigned on the coordinator."""
        # If a server is lost, the values of a checkpoint have to be sent instead: so this looks again.
        self.servers.with_recovery(lambda: _send_changes(self.servers, variables))

    # Running.

    def _run(
        self, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], donate: tuple[int, ...]
    ) -> PyTree:
        del donate
        check_function("`fn`", fn)
        if recorder() is None:
            _log.warning(
                "strategy.run was called outside of a scheduled function: it runs on the coordinator and fetches "
                "every variable that it reads. Schedule it: coordinator.schedule(step, args=(iterator,))."
            )
        with context.entered(strategy=self, replica=_WorkerReplicaContext(self)):
            return fn(*args, **kwargs)

    def _update(
        self, variable: VariableLike, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        with context.entered(replica=None):
            return fn(variable, *args, **kwargs)

    def local_results(self, value: PyTree) -> tuple[PyTree, ...]:
        """Returns a tuple of `value` alone."""
        return (values_of(value),)

    def replicate(self, nest: PyTree) -> PyTree:
        """Returns a copy of the arrays and numbers in the pytree `nest` on the coordinator's device."""
        return default_strategy().replicate(nest)

    def keras_loops(self, model: keras.Model) -> KerasLoops:
        """Returns what runs the loops of a Keras model: `fit` and the like."""
        return KerasLoops(model, self)

    # Data.

    def distribute_dataset(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> WorkersDataset:
        """Returns `dataset` for the workers; each gets a copy. Give it to `create_per_worker_dataset`."""
        given = default_strategy().distribute_dataset(dataset, options, batch_size=batch_size)
        return WorkersDataset(lambda: given, given)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], PyTree], options: InputOptions | None = None
    ) -> WorkersDataset:
        """Returns the dataset that `dataset_fn` makes on each worker: give it to `create_per_worker_dataset`."""
        on_worker = WorkersStrategy(self.cluster.workers)
        return WorkersDataset(functools.partial(on_worker.distribute_datasets_from_function, dataset_fn, options))

    def distribute_values_from_function(self, value_fn: Callable[[ValueContext], PyTree]) -> PyTree:
        """Returns `value_fn(ValueContext())`."""
        return call("value_fn", value_fn, (ValueContext(),))

    # The end.

    def close(self) -> None:
        """Ends servers and workers, and the cluster if it is one of this process's own. Variables keep no values.

        Whatever needs them raises `ContextError` afterwards; a second `close` does nothing. If Ray does not answer, it
        takes at most about 30 seconds.
        """
        atexit.unregister(self._at_exit)
        if self.coordinator is not None:
            self.coordinator.close()
        self._ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[WorkersStrategy], tuple[int]]:
        # In a worker's dataset function there is a `WorkersStrategy` in the place of this strategy.
        return WorkersStrategy, (self.cluster.workers,)

    def _facts(self) -> dict[str, object]:
        return {"workers": self.cluster.workers, "parameter servers": len(self.servers)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(workers={self.cluster.workers}, servers={len(self.servers)})"


class WorkersStrategy(DefaultStrategy):
    """The strategy in a worker's dataset function."""

    def __init__(self, workers: int):
        self._workers = workers

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], PyTree], options: InputOptions | None = None
    ) -> PyTree:
        """Returns the dataset that `dataset_fn` makes for this worker."""
        del options
        index = context.current().worker_index
        if index is None:
            raise ContextError(
                "distribute_datasets_from_function was called on the coordinator: workers make their datasets "
                "themselves. Call it in the function that you give to coordinator.create_per_worker_dataset."
            )
        return call("dataset_fn", dataset_fn, (InputContext(self._workers, index, 1),))

    def __reduce__(self) -> tuple[type[WorkersStrategy], tuple[int]]:
        return WorkersStrategy, (self._workers,)


def _send_changes(servers: ServerActors, variables: Sequence[VariableLike]) -> None:
    changed = [home for home in map(home_of, variables) if home.changed and home.servers]
    values: dict[int, dict[ShardId, np.ndarray | CreatedRows]] = {}
    for home in changed:
        parts = list(zip(home.shards, home.parts(), strict=True))
        for i, server in enumerate(home.servers):
            shard, part = parts[0 if home.copies else i]
            values.setdefault(server, {})[shard] = part
    servers.put(values)
    for home in changed:
        home.sent()


def _where(home: Home) -> str:
    """Returns on which servers a variable is, for `explain`."""
    if home.copies:
        return "a copy on each server"
    if not home.servers:
        return "on no server yet"
    return ", ".join(
        f"ps:{server}" if bounds is None else f"ps:{server} rows {bounds[0]}-{bounds[1] - 1}"
        for server, bounds in zip(home.servers, home.bounds, strict=True)
    )


def _close(reference: weakref.ref[ParameterServerStrategy]) -> None:
    if (strategy := reference()) is not None:
        strategy.close()


class _ServerPlacement(Placement):
    """The placement of a strategy whose variables are on servers."""

    described_sum = "on all servers"

    def __init__(self, strategy: ParameterServerStrategy):
        self._strategy = weakref.ref(strategy)

    def described(self, variable: VariableLike) -> str:
        """Returns which servers have a variable."""
        return _where(home_of(variable))

    def bytes_held(self, variable: VariableLike) -> int:
        """Returns the bytes that all servers together hold of a variable."""
        return variable_bytes(variable)

    def initialize(self, variable: VariableLike, value: jax.typing.ArrayLike) -> None:
        """Gives a variable a value; a new variable is adopted first."""
        strategy = self._strategy()
        assert strategy is not None
        if is_per_worker(variable):
            if not isinstance(variable, PerWorkerVariable):
                keep_on_each_worker(variable, value)
            set_array(variable, jax.numpy.copy(value))
            return
        strategy.adopt(variable)
        set_array(variable, cast(jax.Array, value))


class _WorkerReplicaContext(ReplicaContext):
    """The replica context of a scheduled function: replica 0 of 1."""

    replica_id_in_sync_group = 0  # type: ignore[assignment] # A plain int here, as there is one replica.

    def __init__(self, strategy: Strategy):
        super().__init__(strategy, num_replicas=1)

    @called_as("tf.distribute.ReplicaContext.all_reduce")
    def all_reduce(self, op: ReduceOp | str, value: PyTree, options: CommunicationOptions | None = None) -> PyTree:
        """Returns `value`."""
        return default_replica_context().all_reduce(op, value, options)

    def all_gather(self, value: PyTree, axis: int = 0, options: CommunicationOptions | None = None) -> PyTree:
        """Returns `value`."""
        return default_replica_context().all_gather(value, axis, options)

    def merge_call(
        self, merge_fn: PyTreeFunction, args: Sequence[PyTree] = (), kwargs: Mapping[str, PyTree] | None = None
    ) -> PyTree:
        """Returns `merge_fn(strategy, *args, **kwargs)`."""
        with context.entered(replica=None):
            return called("merge_fn", merge_fn, args, kwargs, self.strategy)


def _check_options(partitioner: object, max_staleness: object, stall_timeout: object) -> None:
    if partitioner is not None and not callable(partitioner):
        raise ArgumentError(
            f"`variable_partitioner` is a partitioner such as rx.MinSizePartitioner, got {partitioner!r}."
        )
    if max_staleness is not None:
        checked_int("max_staleness", max_staleness, note=", a number of updates, or None for any number")
    checked_seconds("stall_timeout", stall_timeout, infinite=True)
