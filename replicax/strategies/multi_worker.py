"""Synchronous data parallelism over the devices of many processes and machines."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar, cast

import jax

from replicax.cluster import ClusterResolver, cluster_of
from replicax.cluster.exchange import exchanged
from replicax.cluster.signing import pickled, unpickled
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.contracts.called_as import called_as
from replicax.contracts.placement import Placement
from replicax.contracts.strategy import PER_REPLICA, PER_ROW
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError
from replicax.group.health import DEFAULT_STALL_TIMEOUT_S, stall_timeout_from
from replicax.runtime.memory import keep_freed_memory
from replicax.runtime.mesh import forget_meshes
from replicax.runtime.numbers import checked_blocks
from replicax.runtime.precision import checked_precision
from replicax.strategies.client import ClientMethods, RemoteCluster, runs_for_a_client
from replicax.strategies.elastic import Elastic, elastic_from
from replicax.strategies.mesh_placement import MeshPlacement, mesh_of_blocks
from replicax.strategies.mesh_strategy import MeshStrategy, checked_random_numbers
from replicax.strategies.sharded_update import checked_shard_update
from replicax.strategies.workers import START_TIMEOUT_S, Workers, patience
from replicax.typing import PyTree

if TYPE_CHECKING:  # Loaded where they are needed only.
    from replicax.checkpoint import Checkpoint
    from replicax.strategies.elastic_variables import Followers

_P = ParamSpec("_P")
_R = TypeVar("_R")
_RESULT = "a result of remote_all"


class MultiWorkerMirroredStrategy(MeshStrategy):
    """Trains synchronously on the devices of all workers of a cluster: `MirroredStrategy` over many processes.

    Every worker runs the same program, and makes the strategy at its top, before anything creates an array: there it
    waits for the others. All variables have a copy on each device of each worker; the first values are those of the
    chief. Every worker must call `run`, `fit`, `reduce` and the like in the same order, since they compute together.

    With `remote_cluster` this process is a *client*, such as a laptop: the workers are elsewhere, on servers that wait
    (`replicax server`) or in a Ray cluster. Nothing is computed here. `Model.fit`, `evaluate` and `predict` of a model
    made in the scope, and functions given to `remote`, run on the workers; what they print arrives here. When this
    process ends in any way, so does what runs there, and the servers wait for the next client.

    Args:
        cluster_resolver: Says who this process is; by default the environment does (`TF_CONFIG`, `JAX_*`, Slurm, Open
            MPI, torchrun, ...: see `rx.cluster_resolver.detect_cluster`). Without any cluster there is one worker.
        communication_options: How gradients are packed and compressed on the way; their `timeout_seconds` is another
            spelling of `stall_timeout`.
        cross_device_ops: The algorithm that combines gradients.
        start_timeout: How long to wait for the other workers, in seconds.
        stall_timeout: For how many seconds a worker may not answer, or do nothing while others wait for it, until all
            end with a report (see the guide "My job hangs"). None or 0 for no watching. It must be the same in all
            workers; `REPLICAX_STALL_TIMEOUT` sets another default.
        shard_update: Whether training shards optimizer state of at least 4,096 elements over the replicas of all
            workers, in custom loops; see `MirroredStrategy`. In `Model.fit` each worker keeps all of it, so that the
            chief's callbacks can save it. By default (None) it does not.
        random_numbers: Where random numbers in `run` come from: `"per_replica"` (the default) or `"per_row"` (that of
            elastic training, where the number of replicas changes); see `MirroredStrategy`.
        precision: What Keras's layers made in the scope compute in; see `MirroredStrategy`.
        numbers: `"bitwise"` gives a training the same bits on any number of workers and devices; see
            `MirroredStrategy`. Each worker is given the rows of the whole global batch.
        blocks: Into how many blocks of rows steps are cut then; by default 8.
        remote_cluster: Makes this process a client: the addresses of the servers (`{"worker": ["host1:2222", ...]}`, a
            `ClusterSpec`, or a resolver), or the address of a Ray cluster (`"auto"`, `"host:port"`,
            `"ray://host:port"`). In a process that runs for a client it has no effect.
        workers: How many workers to run in a Ray cluster.
        devices_per_worker: Virtual CPU devices in each of the client's workers; by default `JAX_NUM_CPU_DEVICES` says.
        elastic: Lets workers be lost and others join while the rest go on; see the guide "Elastic training". By
            default the environment decides (`replicax run --elastic`).

    Raises:
        ClusterError: What the cluster is told about is malformed or contradicts itself, or this process does not fit.
        ClusterTimeoutError: Not all workers came in time; it says which.
        ContextError: JAX has already started in this process.

    Attributes:
        cluster_resolver: The resolver that was given, or the one that was found; without any cluster it names no task.
        cluster: The `ClusterConfig`: who this process is.
        workers: The names of all workers, such as `("worker:0", "worker:1")`.

    Example:
        >>> strategy = MultiWorkerMirroredStrategy()  # no TF_CONFIG here: one worker, all its devices
        >>> strategy.num_workers, strategy.is_chief
        (1, True)
    """

    waits_for_workers = True
    _followers: Followers | None = None

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Returns a client where `remote_cluster` says so."""
        del args
        is_client = kwargs.get("remote_cluster") is not None and not runs_for_a_client()
        if is_client and cls is MultiWorkerMirroredStrategy:
            return cast(Self, object.__new__(_Client))
        return super().__new__(cls)

    @called_as("tf.distribute.experimental.MultiWorkerMirroredStrategy")
    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        start_timeout: float = START_TIMEOUT_S,
        stall_timeout: float | None = DEFAULT_STALL_TIMEOUT_S,
        *,
        shard_update: bool | None = None,
        random_numbers: str | None = None,
        precision: str | None = None,
        numbers: str | None = None,
        blocks: int | None = None,
        remote_cluster: RemoteCluster | None = None,
        workers: int | None = None,
        devices_per_worker: int | None = None,
        elastic: Elastic | None = None,
    ):
        del workers, devices_per_worker  # A client's.
        if remote_cluster is not None and not runs_for_a_client():
            raise ArgumentError(f"{type(self).__name__} cannot be a client: use MultiWorkerMirroredStrategy itself.")
        stall_timeout = patience(stall_timeout, self._checked_options(communication_options).timeout_seconds)
        self.blocks = checked_blocks(
            numbers, blocks, cross_device_ops=cross_device_ops, communication_options=communication_options
        )
        elastic = elastic_from(elastic)
        if elastic is not None:
            if shard_update:
                raise ArgumentError(
                    "shard_update=True leaves each part of an optimizer's state with one worker, and it would be lost "
                    "with that one. Leave it out of elastic training."
                )
            placement = self._first_world(elastic, cluster_resolver, start_timeout, stall_timeout)
        else:
            joined = Workers.joined(cluster_resolver, start_timeout, stall_timeout)
            self._set_workers(joined)
            placement = MeshPlacement(*mesh_of_blocks(joined.devices(), self.blocks), workers=joined.names)
        super().__init__(placement, cross_device_ops, communication_options)
        self.shard_update = checked_shard_update(shard_update, False, self.communication_options)
        self.precision = checked_precision(precision, self.devices)
        self.random_numbers = checked_random_numbers(random_numbers, PER_REPLICA if elastic is None else PER_ROW)

    # Elastic training: the strategy takes on the devices of each new world.

    def _first_world(
        self, elastic: Elastic, resolver: ClusterResolver | None, start_timeout: float, stall_timeout: float | None
    ) -> MeshPlacement:
        """Waits for the other workers, unless they train already, and returns the first placement."""
        from replicax.group.membership.opening import open_group
        from replicax.strategies.elastic_variables import Followers
        from replicax.strategies.newcomer_state import StrategyState

        resolver, config = cluster_of(resolver)
        keep_freed_memory()
        most = elastic.max_workers or config.num_processes
        patience_s = stall_timeout_from(stall_timeout)
        group = open_group(config, elastic.min_workers, most, start_timeout, patience_s)
        self._set_workers(Workers(resolver, config, group.world.names))
        self._followers = Followers(group)
        group.always.append(StrategyState(self._followers, lambda: self.placement))
        group.changes.append(self._change_world)
        return self._placement_in(self._followers)

    def _placement_in(self, followers: Followers) -> MeshPlacement:
        self._set_workers(self._joined._replace(names=followers.group.world.names))
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        mesh, axes = mesh_of_blocks(devices, self.blocks)
        return MeshPlacement(mesh, axes, workers=self.workers, followers=followers)

    def _change_world(self) -> None:
        assert self._followers is not None
        before = self.placement
        forget_meshes()
        self._set_placement(self._placement_in(self._followers))
        self._followers.move(before.variable_sharding, self.placement.variable_sharding)

    def adopt(self, variable: VariableLike) -> None:
        """Lets a Keras variable that is made in the scope follow from world to world."""
        super().adopt(variable)
        if self._followers is not None:
            self._followers.add([variable])

    def join(self, checkpoint: Checkpoint | None = None, **objects: PyTree) -> bool:
        """Names the state of the training that a worker gets which joins while the others train; and lets it join.

        All workers call this before the training loop, when they have made (and restored) what the state consists of.
        In a worker that has come while the others train, it waits until they come to a boundary, and gives the objects
        the state that they have there: from their memory, not from disk. Without elasticity nothing happens.

        Boundaries are where the loop asks for the next batch of the first distributed dataset, or iterator, among the
        objects: the newcomer gets this batch, too. Without one they are where it asks any dataset for a batch. A later
        call of this method in the loop is a boundary, too.

        All variables of this strategy are given in any case, also those that the newcomer makes in its first step, and
        the states of the global random generators of Python, NumPy and Keras.

        Args:
            checkpoint: What else the state consists of, as an `rx.Checkpoint`. Numbers in it are given as they stand
                there: count in an `rx.Variable`, or set them anew in each step (`checkpoint.step = step`). None for
                what an earlier call has named.
            **objects: The same without an `rx.Checkpoint`.

        Returns:
            Whether this worker has got the state of others: nothing is to be restored or initialized then.

        Raises:
            ArgumentError: Nothing is named, neither here nor before; or `checkpoint` is no `rx.Checkpoint`.
            ElasticError: The state of the others does not fit this worker's objects.
            MeetingError: Nobody is left who has the state.

        Example:
            >>> from replicax import MultiWorkerMirroredStrategy, Variable
            >>> strategy = MultiWorkerMirroredStrategy()
            >>> with strategy.scope():
            ...     steps = Variable(0)
            >>> strategy.join(steps=steps)  # not elastic here
            False
        """
        from replicax.checkpoint.joining import join, state_named

        return join(state_named(checkpoint, objects))

    # A client and its workers.

    def remote(self, fn: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Runs `fn(*args, **kwargs)` on every worker, in a fresh process there, and returns the chief's result.

        On a client: functions and classes of the script, and of modules beside it, travel with the call; this strategy,
        and models made in its scope, become the worker's own. Output and logs of `fn` arrive here, each line with the
        name of its worker; so does its error, whose cause has the traceback there. Ctrl-C ends the workers.
        In a process that is a worker itself (under `replicax run`, say) it calls `fn`.

        Args:
            fn: The function. It calls `strategy.run` and the like, as a script of the worker would.
            args: Its arguments; they can be pickled.
            kwargs: Its keyword arguments.

        Raises:
            ArgumentError: `fn` or an argument cannot be sent, or the chief's result cannot.
            ClusterError: The client is closed, its cluster is lost, or another call is running.
            RemoteWorkerError: A worker ended without an error of its own: it was killed, say, or its server was lost.
            Exception: What `fn` raised on the worker that failed first.
        """
        return fn(*args, **kwargs)

    def remote_all(self, fn: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> tuple[_R, ...]:
        """Like `remote`, and returns the results of all workers, in their order."""
        own = fn(*args, **kwargs)
        if self.num_workers == 1:
            return (own,)
        return tuple(unpickled(_RESULT, each) for each in exchanged(pickled(_RESULT, own)))

    def close(self) -> None:
        """Does nothing; a client gives its cluster back."""

    def __repr__(self) -> str:
        return self._shown_as_worker()


class _Client(ClientMethods, MultiWorkerMirroredStrategy):
    """A `MultiWorkerMirroredStrategy` whose workers are elsewhere."""

    placement = Placement()  # type: ignore[assignment] # Variables are in this process between calls.
    worker_index = 0
    is_chief = True

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        start_timeout: float = START_TIMEOUT_S,
        stall_timeout: float | None = DEFAULT_STALL_TIMEOUT_S,
        *,
        shard_update: bool | None = None,
        random_numbers: str | None = None,
        remote_cluster: RemoteCluster | None = None,
        workers: int | None = None,
        devices_per_worker: int | None = None,
    ):
        if cluster_resolver is not None or remote_cluster is None:
            raise ArgumentError(
                "`cluster_resolver` says which worker this process is, and a client (`remote_cluster`) is none."
            )
        patience(stall_timeout, self._checked_options(communication_options).timeout_seconds)
        checked_random_numbers(random_numbers)
        given = (communication_options, cross_device_ops, start_timeout, stall_timeout, shard_update, random_numbers)
        own = (_of_this_worker, (pickle.dumps(given),))
        ClientMethods.__init__(self, remote_cluster, workers, devices_per_worker, start_timeout, own)


@functools.cache
def _of_this_worker(given: bytes) -> MultiWorkerMirroredStrategy:
    """Returns the strategy of this worker, which stands for a client's."""
    *arguments, shard_update, random_numbers = pickle.loads(given)
    return MultiWorkerMirroredStrategy(None, *arguments, shard_update=shard_update, random_numbers=random_numbers)
