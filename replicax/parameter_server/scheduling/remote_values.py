"""Results that are not there yet, and values that each worker has of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from replicax.checks import is_real
from replicax.contracts.called_as import called_as
from replicax.contracts.variable_access import is_per_worker
from replicax.errors import ArgumentError, ContextError
from replicax.parameter_server.compiling.recording import PytreeSpec, recorder
from replicax.typing import PyTree

_SECONDS_TO_LOOK_UP = 0.5  # so that Ctrl-C is heard


class RemoteValue:
    """The result of a scheduled function, which may not have run yet.

    Example:
        >>> loss = coordinator.schedule(step, args=(iterator,))  # doctest: +SKIP
        >>> coordinator.join()  # doctest: +SKIP
        >>> loss.fetch()  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._there = threading.Event()
        self._result: PyTree = None
        self._arrays: PyTree = None
        self._error: BaseException | None = None

    def fetch(self, timeout: float | None = None) -> PyTree:
        """Waits for the function and returns its result, with NumPy arrays.

        Args:
            timeout: How long to wait at most, in seconds; None for as long as it takes.

        Raises:
            CancelledError: The function was not run, because another one failed.
            TimeoutError: The result was not there in time.
            ArgumentError: `timeout` is no number of seconds.
            Exception: What the function, or the dataset it takes batches from, raised on the worker.
        """
        check_timeout(timeout)
        remaining = timeout
        while not self._there.wait(_SECONDS_TO_LOOK_UP if remaining is None else min(remaining, _SECONDS_TO_LOOK_UP)):
            if remaining is not None:
                remaining -= _SECONDS_TO_LOOK_UP
                if remaining <= 0:
                    raise TimeoutError(f"The result of a scheduled function was not there after {timeout:g} s.")
        if self._error is not None:
            raise self._error
        return self._result

    def get(self, timeout: float | None = None) -> PyTree:
        """Waits for the function and returns its result, with JAX arrays; otherwise like `fetch`."""
        value = self.fetch(timeout)
        if self._arrays is None:
            self._arrays = jax.tree_util.tree_map(
                lambda leaf: jnp.asarray(leaf) if hasattr(leaf, "dtype") else leaf, value
            )
        return self._arrays

    @property
    def is_ready(self) -> bool:
        """Whether the function has run, failed or been cancelled."""
        return self._there.is_set()

    def _set_result(self, value: PyTree) -> None:
        self._result = value
        self._there.set()

    def _set_error(self, error: BaseException) -> None:
        self._error = error
        self._there.set()

    def __repr__(self) -> str:
        state = "waiting" if not self.is_ready else "ready" if self._error is None else "failed"
        return f"<RemoteValue {state}>"


class PerWorkerValues:
    """A value that each worker has of its own; in a scheduled function, that of the worker which runs it.

    `ClusterCoordinator.create_per_worker_resource` makes it.

    Example:
        >>> index = coordinator.create_per_worker_resource(rx.coordinator.get_current_worker_index)  # doctest: +SKIP
        >>> coordinator.schedule(step, args=(index,))  # doctest: +SKIP
    """

    @called_as("tf.distribute.coordinator.PerWorkerValue")
    def __init__(self, id: int, fetch_all: Callable[[int], Sequence[PyTree]]):
        self._id, self._fetch_all = id, fetch_all

    @property
    def value(self) -> PyTree:
        """The value, inside a scheduled function."""
        current = recorder()
        if current is None:
            raise ContextError(
                "Each worker has a value of its own; there is none on the coordinator. Pass it to a function that is "
                "scheduled, or use `fetch()` for all of them."
            )
        return current.resource(self._id)

    def assign(self, value: PyTree) -> None:
        """Replaces the value of the worker that runs the scheduled function in which this is called.

        A worker that takes the place of a lost one begins with what its function returned.

        Raises:
            ContextError: Called on the coordinator.
            VariableError: The new value has another structure, shape or dtype.
            ProgramError: Called inside a function that JAX traces on its own.
        """
        current = recorder()
        if current is None:
            raise ContextError(
                "Each worker has a value of its own; the coordinator cannot assign it. Do it in a function that is "
                "scheduled, or make a new resource."
            )
        current.assign(self._id, value)

    def fetch(self) -> tuple[PyTree, ...]:
        """Returns all workers' values, with NumPy arrays."""
        return tuple(self._fetch_all(self._id))


class PerWorkerDataset:
    """A dataset that each worker makes for itself; `iter()` of it gives what to pass to `schedule`.

    Example:
        >>> import numpy as np
        >>> dataset = coordinator.create_per_worker_dataset(lambda: np.arange(10))  # doctest: +SKIP
        >>> coordinator.schedule(step, args=(iter(dataset),))  # doctest: +SKIP
    """

    def __init__(self, id: int, make_iterator: Callable[[PerWorkerDataset], PerWorkerIterator]):
        self._id, self._make_iterator = id, make_iterator

    def __iter__(self) -> PerWorkerIterator:
        """Begins a pass over it, on each worker from the beginning."""
        if recorder() is not None:
            raise ContextError("iter() of a dataset of the workers was called in a scheduled function: call it before.")
        return self._make_iterator(self)


class PerWorkerIterator:
    """One pass over a dataset on each worker; `next()` of it, in a scheduled function, is the next batch there.

    Example:
        >>> iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))  # doctest: +SKIP
        >>> coordinator.schedule(step, args=(iterator,))  # doctest: +SKIP
    """

    def __init__(self, id: int, dataset: PerWorkerDataset, describe: Callable[[str, int], PytreeSpec]):
        self._id, self._describe = id, describe
        self._dataset = dataset  # The workers drop it when nobody refers to it here.

    @property
    def element_spec(self) -> PyTree:
        """The next batch as a pytree of `jax.ShapeDtypeStruct`; asks a worker, who may have to read it first."""
        described = self._describe("batch", self._id)
        return described.rebuild(described.specs)

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> PyTree:
        """Returns the next batch of the worker that runs the function."""
        current = recorder()
        if current is None:
            raise ContextError(
                "next() of a worker's iterator was called on the coordinator: the batches are on the workers. Call it "
                "in the function that is scheduled."
            )
        return current.batch(self._id)


def check_arguments(arguments: PyTree) -> None:
    """Refuses arguments that cannot be sent to a worker."""
    for leaf in jax.tree_util.tree_leaves(arguments):
        if isinstance(leaf, RemoteValue):
            raise ArgumentError(
                "The result of a scheduled function was passed to another one; it may not be there yet. Pass "
                "`coordinator.fetch(value)`, or do both in one function."
            )
        if is_per_worker(leaf):
            raise ArgumentError(
                f"Variable {leaf.name!r} was passed to a scheduled function, but each worker has its own. Let the "
                "function use it without passing it: it is that of the worker which runs the function."
            )


def check_timeout(timeout: object) -> None:
    """Checks a timeout that a user gives: None, or a number of seconds."""
    if timeout is not None and not (is_real(timeout) and timeout >= 0):
        raise ArgumentError(
            f"A timeout is a number of seconds, or None to wait for as long as it takes; got {timeout!r}."
        )
