"""The batches of an input function, on the devices of a strategy.

Without an `input_context` they are global: they are split over the replicas of all workers, which all read the same
ones. With one they are the replicas' own, as in `distribute_datasets_from_function`. For parameter servers, global
batches are read here, and each goes to one worker; with an `input_context` each worker reads its own, and what is given
in place of batches is their iterator.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

import jax
import numpy as np

import replicax.context as context
from replicax.data import InputContext
from replicax.data.sources import host_batches
from replicax.errors import BatchError, EstimatorError
from replicax.estimator.batches import is_one_batch
from replicax.estimator.model_fn import call_input_fn, takes_input_context
from replicax.parameter_server import ClusterCoordinator
from replicax.parameter_server.compiling.recording import current_worker_index
from replicax.strategies import Strategy
from replicax.strategies.no_strategy import default_strategy
from replicax.typing import PyTree

if TYPE_CHECKING:
    from replicax.parameter_server.coordinator import CoordinatedStrategy

InputFn = Callable[..., PyTree]


def batches_of(
    input_fn: InputFn, strategy: Strategy, endless: bool | None, **given: object
) -> contextlib.AbstractContextManager[tuple[PyTree, Iterator[PyTree]]]:
    """Returns a context manager of the first batch of an input function, for its shapes, and of all its batches."""
    has_context = takes_input_context(input_fn)
    if strategy.is_asynchronous and has_context:
        return _batches_of_workers(input_fn, strategy, given)
    if strategy.is_asynchronous:
        strategy = default_strategy()

    def dataset(own: InputContext | None = None) -> PyTree:
        return _dataset(call_input_fn(input_fn, input_context=own, **given), endless)

    def distributed() -> PyTree:
        if strategy.mesh is None:  # It passes datasets through: the batches are checked here, as others check them.
            return host_batches(dataset(InputContext()))
        if has_context:
            return strategy.distribute_datasets_from_function(dataset)
        return strategy.distribute_dataset(dataset())

    return _distributed(distributed)


def _dataset(data: PyTree, endless: bool | None) -> PyTree:
    """Returns what an input function has returned as a dataset; `endless` repeats a single batch, None refuses it."""
    if data is None:
        raise EstimatorError(
            "The input function has returned None. It returns a dataset, or a pair (features, labels) of arrays."
        )
    if not is_one_batch(data):
        return data
    if endless is None:
        raise EstimatorError(
            "The input function returns one batch of arrays, on which a training goes on without end. Give `steps` "
            "or `max_steps`, or return a dataset: an iterable of batches."
        )
    return itertools.repeat(data) if endless else [data]


@contextlib.contextmanager
def _distributed(distributed: Callable[[], PyTree]) -> Iterator[tuple[PyTree, Iterator[PyTree]]]:
    with context.entered(strategy=None):  # The default strategy reads for parameter servers, whose scope is open.
        iterator = iter(distributed())
        try:
            first = next(iterator)
        except StopIteration:
            raise BatchError("The dataset of the input function has no batch at all.") from None
    try:
        yield first, itertools.chain([first], iterator)
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


@contextlib.contextmanager
def _batches_of_workers(
    input_fn: InputFn, strategy: Strategy, given: Mapping[str, object]
) -> Iterator[tuple[PyTree, Iterator[PyTree]]]:
    coordinated = cast("CoordinatedStrategy", strategy)
    workers, replicas = coordinated.cluster.workers, strategy.num_replicas_in_sync

    def dataset() -> PyTree:
        own = InputContext(workers, int(current_worker_index()), replicas)
        return _dataset(call_input_fn(input_fn, input_context=own, **given), endless=True)

    iterator = iter(ClusterCoordinator(coordinated).create_per_worker_dataset(dataset))
    yield jax.tree_util.tree_map(_zeros, iterator.element_spec), itertools.repeat(iterator)


def _zeros(spec: PyTree) -> np.ndarray:
    return np.zeros(spec.shape, spec.dtype)
