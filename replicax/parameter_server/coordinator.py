"""`ClusterCoordinator`: schedules functions on the workers of a `ParameterServerStrategy`."""

from __future__ import annotations

import collections
import contextlib
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from replicax.errors import ArgumentError
from replicax.migration import called_as
from replicax.parameter_server.actors.actor_errors import closed
from replicax.parameter_server.actors.messages import Done, SetUp
from replicax.parameter_server.compiling.traced_step import PytreeSpec
from replicax.parameter_server.scheduling.closures import Closure, StepPrograms, Unused
from replicax.parameter_server.scheduling.crew import Crew, Recovery, no_checkpoint
from replicax.parameter_server.scheduling.policy import Ledger
from replicax.parameter_server.scheduling.remote_values import (
    PerWorkerDataset,
    PerWorkerIterator,
    PerWorkerValues,
    RemoteValue,
)
from replicax.parameter_server.scheduling.scheduler import Scheduler
from replicax.parameter_server.scheduling.servers import Servers
from replicax.parameter_server.scheduling.stats import Stats, StatsRecorder
from replicax.parameter_server.scheduling.waiting import check_timeout
from replicax.parameter_server.scheduling.watch import Who
from replicax.parameter_server.scheduling.workers import Workers

_MAX_QUEUED = 10_000
_VERSIONS_PER_WORKER = 2  # A worker that had a pause pulls anew; one that is busy uses what came with its last push.


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

    strategy: Any

    def __new__(
        cls, strategy: Any, checkpoint_manager: Any = None, max_queued: int = _MAX_QUEUED
    ) -> ClusterCoordinator:
        """Returns the strategy's coordinator, a new one if it has none."""
        if not getattr(strategy, "is_asynchronous", False):
            raise ArgumentError(f"A ClusterCoordinator is for a ParameterServerStrategy, got {strategy!r:.100}.")
        if strategy.coordinator is None:
            strategy.servers.check()
            strategy.coordinator = super().__new__(cls)
            strategy.coordinator._start(strategy, checkpoint_manager, max_queued)
        elif checkpoint_manager is not None and checkpoint_manager is not strategy.coordinator._manager:
            raise ArgumentError("The strategy has a coordinator already; give the checkpoint manager to the first one.")
        return strategy.coordinator

    def _start(self, strategy: Any, manager: Any, max_queued: int) -> None:
        if not isinstance(max_queued, int) or max_queued < 1:
            raise ArgumentError(f"`max_queued` is a number of functions, at least 1, got {max_queued!r}.")
        self.strategy, self._manager, self._is_closed = strategy, manager, False
        self._numbers = itertools.count()
        self._unused: collections.deque[Unused] = collections.deque()
        self._complete = [0] * len(strategy.servers)
        self._stats = StatsRecorder(strategy.cluster.workers, len(strategy.servers))
        self._workers = Workers(
            strategy.cluster, strategy.servers.handles, strategy.start_timeout, strategy.stall_timeout
        )
        self._programs = StepPrograms(strategy, self._workers, self._describe, self._unused.append)
        self._scheduler = Scheduler(
            Ledger(strategy.cluster.workers, max_staleness=strategy.max_staleness),
            _Crew(self, self._workers, strategy.servers),
            servers=len(strategy.servers),
            max_queued=max_queued,
            stall_timeout=strategy.stall_timeout,
            start_timeout=strategy.start_timeout,
        )
        strategy.servers.starts = self._scheduler.server_starts
        if manager is not None:
            strategy.servers.recover = self._scheduler.recover_servers
        self._scheduler.start()

    # Scheduling.

    def schedule(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
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
        closure = self._programs.closure(fn, args, kwargs)
        self._make_known(closure)
        if self._scheduler.is_idle():
            self._complete = list(self._stats.versions)  # What is scheduled from here on sees all that was done before.
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
    def fetch(self, value: Any) -> Any:
        """Waits for each `RemoteValue` in a nest and returns the nest with NumPy arrays in their places."""
        return jax.tree_util.tree_map(
            lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf,
            value,
            is_leaf=lambda leaf: isinstance(leaf, RemoteValue),
        )

    # What each worker has of its own.

    def create_per_worker_dataset(self, dataset_fn: Callable[[], Any]) -> PerWorkerDataset:
        """Lets each worker make a dataset; `iter()` of what is returned gives what to pass to `schedule`.

        Each worker has all that the function returns, independent of the others: let it shuffle, or read different
        files by `rx.coordinator.get_current_worker_index()`. It should have no end (see `EndOfDataError`).

        Args:
            dataset_fn: Returns an iterable of batches (nests of arrays). It is pickled, and called on each worker,
                again when a worker is replaced. A dataset object itself may be given too, and is copied.
        """
        number = next(self._numbers)
        made = dataset_fn if callable(dataset_fn) else lambda: dataset_fn
        self._workers.tell(SetUp("dataset", (number, _pickled(made, "dataset_fn")), provides=number))
        dataset = PerWorkerDataset(number, self._make_iterator)
        weakref.finalize(dataset, self._forget, number).atexit = False
        return dataset

    def create_per_worker_resource(self, resource_fn: Callable[[], Any]) -> PerWorkerValues:
        """Lets each worker make a value, a nest of arrays that scheduled functions can use as an argument's `value`.

        Args:
            resource_fn: Returns the value. It is pickled, and called on each worker, again when one is replaced.
        """
        number = next(self._numbers)
        self._workers.tell(SetUp("resource", (number, _pickled(resource_fn, "resource_fn")), provides=number))
        values = PerWorkerValues(number, self._fetch_resources)
        weakref.finalize(values, self._forget, number).atexit = False
        return values

    def _make_iterator(self, dataset: PerWorkerDataset) -> PerWorkerIterator:
        number = next(self._numbers)
        self._workers.tell(SetUp("iterator", (number, dataset._number), provides=number))
        iterator = PerWorkerIterator(number, dataset, self._describe)
        weakref.finalize(iterator, self._forget, number).atexit = False
        return iterator

    def _forget(self, number: int) -> None:
        # The garbage collector calls this at any moment, in any thread: it only takes a note.
        self._unused.append(Unused(number))

    def _fetch_resources(self, number: int) -> list[Any]:
        described = self._describe("resource", number)
        return [described.rebuild(arrays) for arrays in self._workers.resources(number)]

    def _describe(self, kind: str, number: int, worker: int | None = None) -> PytreeSpec:
        treedef, leaves = self._workers.structure(kind, number, worker)
        return PytreeSpec(treedef, tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves))

    # What the scheduler asks for.

    def _make_known(self, closure: Closure) -> None:
        assert closure.program is not None
        self.strategy.send_changes(self._programs.variables(closure.program))

    def _submit(self, worker: int, closure: Closure) -> Any:
        assert closure.program is not None
        versions = self._stats.versions
        slack = _VERSIONS_PER_WORKER * len(self._workers)
        known = zip(self.strategy.servers.written, self._complete, versions, strict=True)
        at_least = tuple(max(written, complete, version - slack) for written, complete, version in known)
        exact = self.strategy.max_staleness is not None
        return self._workers.run(
            worker, closure.program.step(closure, at_least, exact, self._workers.told_of_servers)
        ).future()

    def _on_done(self, worker: int, closure: Closure, done: Done) -> None:
        assert closure.program is not None
        self.strategy.servers.age += 1
        self._stats.note(worker, done)
        closure.value._set(closure.program.traced.result.rebuild(done.results))

    def _retrace(self, worker: int, closure: Closure, iterator: int) -> None:
        """Compiles a closure for the batch that a worker has: the last one of a pass is smaller, for example."""
        closure.program = self._programs.program(closure, {iterator: self._describe("batch", iterator, worker)})
        self._make_known(closure)

    def _recover(self, reason: str) -> None:
        try:
            if self._manager is None:
                raise no_checkpoint(reason)
            Recovery(self.strategy, self._workers, self._manager, self._on_replaced)(reason)
        except Exception as error:
            self.strategy.servers.failure = error  # Nor shall a value be read that this process happens to have kept.
            raise

    def _on_replaced(self, servers: Sequence[int]) -> None:
        self._stats.servers_replaced(list(servers))
        for server in servers:
            self._complete[server] = 0

    def _tidy(self) -> None:
        """Lets workers and servers drop what nobody refers to any more."""
        while self._unused:
            provided, servers = self._unused.popleft()
            self._workers.forget(provided)
            if servers:
                self.strategy.servers.forget(provided[1], servers)

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which no function is under way; those that are queued go on after it."""
        return self._scheduler.quiet()

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
        from replicax.parameter_server.scheduling.scalars import written_scalars

        return written_scalars(self.stats, directory, every_s)

    def processes(self) -> dict[str, int]:
        """Returns the process ids of all workers that are up, and of all servers, by name (`"worker:0"`, `"ps:1"`)."""
        found = {f"worker:{worker}": pid for worker, pid in sorted(self._workers.pids().items())}
        return found | {f"ps:{server}": pid for server, pid in sorted(self.strategy.servers.pids().items())}

    def close(self) -> None:
        """Ends the workers; what is queued is cancelled. The strategy's `close` does this too; twice is as good."""
        self._is_closed = True
        self._scheduler.close()
        self._workers.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.strategy!r})"


class _Crew(Crew):
    """The actors and the coordinator as the scheduler sees them."""

    def __init__(self, coordinator: ClusterCoordinator, workers: Workers, servers: Servers):
        super().__init__(workers, servers)
        self.submit, self.retrace = coordinator._submit, coordinator._retrace
        self.recover, self.done, self.tidy = coordinator._recover, coordinator._on_done, coordinator._tidy
        self._restarts = coordinator._stats.restarts

    def start(self, who: Who, life: int) -> int:
        self._restarts[who.number] = life - 1
        return super().start(who, life)


def _pickled(fn: Any, name: str) -> bytes:
    import ray.cloudpickle

    if not callable(fn):
        raise ArgumentError(f"`{name}` is a function without arguments, got {fn!r:.100}.")
    try:
        return ray.cloudpickle.dumps(fn)
    except Exception as error:
        raise ArgumentError(
            f"`{name}` runs on the workers, but it cannot be pickled: {error}. Let it make what it needs (open files, "
            "datasets, models) inside, instead of using what exists here."
        ) from error
