"""`ClusterCoordinator`: schedules functions on the workers of a `ParameterServerStrategy`."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import jax

from replicax.checks import checked_int, checked_seconds, explain_misfit
from replicax.contracts.called_as import called_as
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError
from replicax.parameter_server.actors.actor_errors import closed
from replicax.parameter_server.scheduling.actor_group import RayActorGroup
from replicax.parameter_server.scheduling.closures import StepPrograms
from replicax.parameter_server.scheduling.host import CheckpointSource, ServedStrategy
from replicax.parameter_server.scheduling.ledger import Ledger
from replicax.parameter_server.scheduling.periodic import Periodic
from replicax.parameter_server.scheduling.remote_values import (
    PerWorkerDataset,
    PerWorkerValues,
    RemoteValue,
    check_timeout,
)
from replicax.parameter_server.scheduling.scheduler import Scheduler
from replicax.parameter_server.scheduling.state import SchedulerState
from replicax.parameter_server.scheduling.stats import Stats, StatsRecorder
from replicax.parameter_server.scheduling.unused import UnusedObjects
from replicax.parameter_server.scheduling.worker_actors import WorkerActors
from replicax.parameter_server.scheduling.worker_objects import WorkerObjects
from replicax.parameter_server.variables.remote import home_of
from replicax.ray_cluster.head import HeadWatch
from replicax.typing import PyTree, PyTreeFunction

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

_MAX_QUEUED = 10_000
# tensorboardX names a file by the second; a second one within the same second would overwrite the first.
_file_numbers = itertools.count()


class CoordinatedStrategy(ServedStrategy, Protocol):
    """A strategy that can have a coordinator: `ParameterServerStrategy`."""

    coordinator: ClusterCoordinator | None


class ClusterCoordinator:
    """Hands functions to the workers of a parameter server strategy and collects what they return.

    A strategy has one coordinator; constructing another one returns the first. A function runs on whichever worker is
    free. If that worker is lost, the function runs on another one: at least once; its updates are applied once.

    If a function raises, or the dataset that it takes batches from, nothing more is begun, what is queued is cancelled,
    and the next `schedule`, `join` or `done` raises the first error. After that one can go on.

    Args:
        strategy: A `ParameterServerStrategy`.
        checkpoint_manager: Where to go on from when a server is lost: all variables then get the values of the newest
            checkpoint. Without one, `ParameterServerLost` ends training.
        max_queued: How many functions may wait; `schedule` blocks while there are more.

    Raises:
        ArgumentError: `strategy` is another one, or the coordinator exists already with other options.

    Attributes:
        strategy: The strategy.

    Example:
        >>> strategy = ParameterServerStrategy(workers=2, servers=1)  # doctest: +SKIP
        >>> coordinator = ClusterCoordinator(strategy)  # doctest: +SKIP
        >>> result = coordinator.schedule(step, args=(iterator,))  # doctest: +SKIP
        >>> coordinator.join()  # doctest: +SKIP
    """

    strategy: CoordinatedStrategy

    def __new__(
        cls,
        strategy: CoordinatedStrategy,
        checkpoint_manager: CheckpointSource | None = None,
        max_queued: int = _MAX_QUEUED,
    ) -> ClusterCoordinator:
        """Returns the strategy's coordinator, a new one if it has none."""
        if not getattr(strategy, "is_asynchronous", False):
            raise ArgumentError(f"A ClusterCoordinator is for a ParameterServerStrategy, got {strategy!r:.100}.")
        if strategy.coordinator is None:
            strategy.servers.check()
            strategy.coordinator = coordinator = super().__new__(cls)
            coordinator._start(strategy, checkpoint_manager, max_queued)
        elif checkpoint_manager is not None and checkpoint_manager is not strategy.coordinator._manager:
            raise ArgumentError("The strategy has a coordinator already; give the checkpoint manager to the first one.")
        return strategy.coordinator

    def _start(self, strategy: CoordinatedStrategy, manager: CheckpointSource | None, max_queued: int) -> None:
        max_queued = checked_int("max_queued", max_queued, least=1)
        self.strategy, self._manager, self._is_closed = strategy, manager, False
        servers, patience = strategy.servers, strategy.patience
        self._stats = StatsRecorder(strategy.cluster.workers, len(servers))
        self._workers = WorkerActors(strategy.cluster, servers.handles, patience)
        unused = UnusedObjects()
        self._objects = WorkerObjects(self._workers, unused)
        self._programs = StepPrograms(strategy, self._workers, self._objects, unused, self._copy_to_all_servers)
        actors = RayActorGroup(strategy, self._workers, self._programs, self._stats, unused, manager)
        ledger = Ledger.of(strategy.cluster.workers, max_staleness=strategy.max_staleness)
        self._scheduler = Scheduler(actors, SchedulerState.of(ledger, len(servers), patience), max_queued)
        if manager is not None:
            servers.recover = self._scheduler.recover_servers
        self._scheduler.start()
        head = strategy.cluster.head
        self._head_watch = None if head is None else HeadWatch(head, self._scheduler.fail, patience)
        if self._head_watch is not None:
            self._head_watch.start()

    # Scheduling.

    def schedule(
        self, fn: PyTreeFunction, args: Sequence[PyTree] | None = None, kwargs: Mapping[str, PyTree] | None = None
    ) -> RemoteValue:
        """Queues a function for any worker and returns at once, unless the queue is full.

        The function is traced here, once for each kind of arguments; the workers get the compiled program. In it,
        `next()` of a worker's iterator is that worker's next batch.

        Args:
            fn: The function, best an `rx.function`.
            args: Arguments: arrays, numbers, iterators and values of the workers, and anything that stays the same.
            kwargs: Keyword arguments.

        Returns:
            The result to come.

        Raises:
            ArgumentError: `fn` cannot be called, or there is a `RemoteValue` among the arguments.
            ProgramError: The function cannot be cut in two or sent to other processes; the message says why.
            ContextError: The strategy is closed.
            Exception: The error of an earlier function.
        """
        self._check_open()
        self._scheduler.raise_error()
        try:
            closure = self._programs.closure(fn, args, kwargs)
        except TypeError:
            explain_misfit("fn", fn, args or (), kwargs or {})
            raise
        self._scheduler.add(closure)
        return closure.value

    def join(self, timeout: float | None = None) -> None:
        """Waits until every function that was scheduled has run.

        Args:
            timeout: How long to wait at most, in seconds.

        Raises:
            TimeoutError: They have not run in time.
            ArgumentError: `timeout` is no number of seconds.
            ContextError: The strategy is closed.
            ParameterServerLost: A server was lost, and there is no checkpoint.
            Exception: The first error that a function raised.
        """
        check_timeout(timeout)
        self._check_open()
        in_time = self._scheduler.join(timeout)
        self._scheduler.raise_error()
        if not in_time:
            raise TimeoutError(f"After {timeout:g} s not all functions had run: {self.stats().queue}.")

    def done(self) -> bool:
        """Returns whether every function that was scheduled has run.

        Raises:
            ContextError: The strategy is closed.
            Exception: The first error that a function raised.
        """
        self._check_open()
        self._scheduler.raise_error()
        return self._scheduler.is_idle()

    def _check_open(self) -> None:
        if self._is_closed:
            raise closed()

    @called_as("tf.distribute.coordinator.ClusterCoordinator.fetch")
    def fetch(self, value: PyTree) -> PyTree:
        """Waits for each `RemoteValue` in a pytree; returns the pytree with NumPy arrays in their places."""
        return jax.tree_util.tree_map(
            lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf,
            value,
            is_leaf=lambda leaf: isinstance(leaf, RemoteValue),
        )

    # Objects that each worker has of its own.

    def create_per_worker_dataset(self, dataset_fn: Callable[[], PyTree]) -> PerWorkerDataset:
        """Lets each worker make a dataset; `iter()` of what is returned gives what to pass to `schedule`.

        Each worker has all that the function returns, independent of the others: let it shuffle, or read different
        files by `rx.coordinator.get_current_worker_index()`. It should have no end (see `EndOfDataError`).

        Args:
            dataset_fn: Returns an iterable of batches (pytrees of arrays). It is pickled, and called on each worker,
                again when a worker is replaced. A dataset object itself may be given too, and is copied.
        """
        return self._objects.dataset(dataset_fn)

    def create_per_worker_resource(self, resource_fn: Callable[[], PyTree]) -> PerWorkerValues:
        """Lets each worker make a value, a pytree of arrays that scheduled functions can use as an argument's `value`.

        Args:
            resource_fn: Returns the value. It is pickled, and called on each worker, again when one is replaced.
        """
        return self._objects.resource(resource_fn)

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which no function is under way; those that are queued go on after it."""
        return self._scheduler.quiet()

    def _copy_to_all_servers(self, variables: Sequence[VariableLike]) -> None:
        with self.quiet():
            for variable in variables:
                home = home_of(variable)
                value = home.fetch()
                self.strategy.placer.copy(variable)
                home.write(jax.numpy.asarray(value))
            self.strategy.send_changes(variables)

    # Looking at it.

    def stats(self) -> Stats:
        """Returns what has been done so far: steps and times of each worker, the queue, staleness, bytes, restarts."""
        return self._stats.snapshot(self._scheduler.queue())

    def live(self) -> contextlib.AbstractContextManager[None]:
        """Shows a table of `stats()` in the terminal while a `with` block runs; see `live_table`."""
        from replicax.parameter_server.scheduling.live import live_table  # A training without it needs no tables.

        return live_table(self.stats)

    def write_scalars(self, directory: str, every_s: float = 10.0) -> contextlib.AbstractContextManager[None]:
        """Writes `stats()` for TensorBoard while a `with` block runs.

        Args:
            directory: Where the event files go.
            every_s: How often, in seconds.
        """
        return written_scalars(self.stats, directory, every_s)

    def processes(self) -> dict[str, int]:
        """Returns the process ids of all workers that are up, and of all servers, by name (`"worker:0"`, `"ps:1"`)."""
        found = {f"worker:{worker}": pid for worker, pid in sorted(self._workers.pids().items())}
        return found | {f"ps:{server}": pid for server, pid in sorted(self.strategy.servers.pids().items())}

    def close(self) -> None:
        """Ends the workers and cancels what is queued, as the strategy's `close` does; a second call does nothing."""
        self._is_closed = True
        if self._head_watch is not None:
            self._head_watch.stop()
        self._scheduler.close()
        self._workers.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.strategy!r})"


@contextlib.contextmanager
def written_scalars(
    stats: Callable[[], Stats], directory: str | os.PathLike[str], every_s: float = 10.0
) -> Iterator[None]:
    """Writes `Stats.scalars()` for TensorBoard every `every_s` seconds of a `with` block, and once more at its end."""
    checked_seconds("every_s", every_s)
    writer = _writer(os.fspath(directory))

    def write() -> None:
        found = stats()
        for name, value in found.scalars().items():
            writer.add_scalar(name, value, found.steps)
        writer.flush()

    with contextlib.closing(writer), Periodic(write, every_s, "replicax-scalars"):
        yield


def _writer(directory: str) -> SummaryWriter:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ArgumentError(
            f"Figures for TensorBoard are written with tensorboardX, which cannot be imported ({error}). Install it: "
            "pip install 'replicax[tensorboard]'."
        ) from error
    try:
        return SummaryWriter(directory, filename_suffix=f".{os.getpid()}.{next(_file_numbers):06d}")
    except OSError as error:
        raise ArgumentError(
            f"Figures for TensorBoard cannot be written to {directory!r}: {error}. Give a folder that exists or can be "
            "made, and that this process may write to."
        ) from error
