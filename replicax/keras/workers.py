"""A loop of Keras on several workers: all of them decide alike, and the chief writes.

Each worker runs Keras's loop with its callbacks. Logs are computed by all workers together, so that callbacks that
decide by them decide alike; what a callback of one worker changes on its own is put right by the chief's word at the
end of each epoch. Where workers may come and go, each has all callbacks, and a newcomer joins a running `fit`
(`loop_state.py`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import types
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import replicax.runtime.activity as activity
from replicax.compat.keras import epoch_iterator_noted, initial_epoch, set_initial_epoch
from replicax.contracts.group import Group, current_group
from replicax.contracts.strategy import StrategyBase
from replicax.data.input_steps import digest
from replicax.errors import BatchError
from replicax.keras.all_workers import check_same_names, make_alike
from replicax.keras.chief_writes import Writers, callbacks_of_worker, listed
from replicax.keras.feeding import dataset_of
from replicax.keras.loop_state import Progress
from replicax.keras.random_state import Generators

if TYPE_CHECKING:
    import keras


@contextlib.contextmanager
def loop_of_workers(given: inspect.BoundArguments, strategy: StrategyBase, loop: str) -> Iterator[None]:
    """Prepares the arguments of a loop for this worker, and lets all workers draw the same random numbers in it."""
    trains = loop == "fit"
    if strategy.placement.group.may_change:
        with _elastic_callbacks(given, strategy, trains):
            # All go on from the state of the first; who comes later is given it by the others.
            Generators.of_json(*current_group().exchange(loop, Generators.here().as_json())[0]).set()
            yield
        return
    placement = strategy.placement
    if not placement.is_chief:
        given.arguments["verbose"] = 0
    if "callbacks" in given.signature.parameters:
        last = [_decides_alike(strategy)] if trains else []
        given.arguments["callbacks"] = callbacks_of_worker(
            given.arguments.get("callbacks"), placement.is_chief, last, placement.shards_variables
        )
    _begin_alike(given, strategy, loop)
    yield


def _begin_alike(given: inspect.BoundArguments, strategy: StrategyBase, loop: str) -> None:
    """Gives the generators of all workers the chief's state, and checks that all have the same data."""
    # Every worker reads the same global batches, so shuffling and random augmentation must be the same everywhere: the
    # global generators of NumPy and Python go on from the chief's state, and have advanced alike afterwards.
    own = Generators.here().as_json() if strategy.placement.is_chief else None
    told = current_group().exchange(loop, [own, _described(given)])
    for name in sorted({name for _, each in told for name in each}):
        found = [each.get(name, "nothing") for _, each in told]
        if any(each != found[0] for each in found):
            shown = "; ".join(f"{w}: {each}" for w, each in zip(strategy.placement.workers, found, strict=True))
            raise BatchError(
                f"The workers call {loop} with different data. `{name}`: {shown}. All must give it the same global "
                "batches in the same order, and each computes its own rows of them: give shuffles the same seed on "
                "every worker. For a worker's own part of each batch use strategy.distribute_datasets_from_function; "
                "for batches of its own of global size, distribute_dataset with auto_shard_policy='off'."
            )
    Generators.of_json(*told[0][0]).set()


def _described(given: inspect.BoundArguments) -> dict[str, str]:
    """Returns words for the arguments of a loop, the same where the data are; nothing for what cannot be compared."""
    if isinstance(given.arguments.get("x"), types.GeneratorType):
        if given.arguments["self"]._replicax.loops:
            return {}  # The validation of a `fit`, in which Keras reads the generator from the first epoch's on.
        first = list(itertools.islice(given.arguments["x"], 1))
        given.arguments["x"] = _again(first, given.arguments["x"])
        return {"x": _words(first)}
    return {name: words for name, value in given.arguments.items() if (words := _words(value)) and name != "verbose"}


def _again(first: Sequence[Any], rest: Iterator[Any]) -> Iterator[Any]:
    """Yields what was looked at, and then the rest; Keras wants a generator."""
    yield from first
    # `yield from` would close the user's generator at the end of the loop.
    for each in rest:  # noqa: UP028
        yield each


def _words(value: Any) -> str:
    if isinstance(value, (bool, int, float)):
        return repr(value)
    arrays = [leaf for leaf in jax.tree_util.tree_leaves(value) if isinstance(leaf, (np.ndarray, jax.Array))]
    here = [
        leaf
        for leaf in arrays
        if leaf.ndim and not leaf.dtype.hasobject and getattr(leaf, "is_fully_addressable", True)
    ]
    return ", ".join(
        f"{leaf.dtype}{list(leaf.shape)} of digest {digest(leaf, thorough=True)}" for leaf in here if len(leaf)
    )


# Where workers may come and go.


@contextlib.contextmanager
def _elastic_callbacks(given: inspect.BoundArguments, strategy: StrategyBase, trains: bool) -> Iterator[None]:
    """Prepares the callbacks of a loop, for a `with` block."""
    import keras

    callbacks, model = given.arguments.get("callbacks"), given.arguments["self"]
    held = callbacks if hasattr(callbacks, "callbacks") else None  # a CallbackList
    if held is not None and model._replicax.loops:
        yield  # The callbacks are those of the `fit` that validates.
        return
    own = listed(callbacks)
    has_bar = held is not None or any(isinstance(each, keras.callbacks.ProgbarLogger) for each in own)
    if given.arguments.get("verbose", "auto") != 0 and not has_bar:
        own.append(keras.callbacks.ProgbarLogger())  # Keras would add it, for all workers.
    writers = Writers(own, strategy)
    group = current_group()
    with contextlib.ExitStack() as stack:
        stack.enter_context(writers.installed())
        first, last = [], []
        if trains:
            progress = _progress(given, strategy, group, writers, own)
            stack.enter_context(_given_to_newcomers(progress, model, group))
            first, last = [_first_class()(progress)], [_decides_alike(strategy, writers)]
        if held is None:
            given.arguments["callbacks"] = [*first, *own, *last]
        else:
            for callback in (*first, *last):
                callback.set_model(model)
                callback.set_params(held.params)
            held.callbacks = [*first, *own, *last]
        yield


def _progress(
    given: inspect.BoundArguments, strategy: StrategyBase, group: Group, writers: Writers, callbacks: Sequence[Any]
) -> Progress:
    model = given.arguments["self"]
    model._replicax.fits += 1
    takes_in = model._replicax.fits == 1 and not isinstance(group.state, Progress)
    dataset = dataset_of(given.arguments.get("x"))
    return Progress(model, strategy, group, writers, callbacks, dataset, takes_in)


@contextlib.contextmanager
def _given_to_newcomers(progress: Progress, model: keras.Model, group: Group) -> Iterator[None]:
    """Lets workers that come in a `with` block join a `fit`."""
    membership: Any = model._replicax
    before, membership.progress = membership.progress, progress
    state = group.state
    if not isinstance(state, Progress):  # A `fit` in a callback of another one lets nobody in.
        group.offer(progress)

    def note(epoch_iterator: object) -> None:
        progress.epoch_iterator = progress.epoch_iterator or epoch_iterator  # The first is that of the training data.

    try:
        with epoch_iterator_noted(model, note):
            yield
    finally:
        membership.progress = before
        group.offer(state)


@functools.cache
def _first_class() -> type:
    import keras

    class FollowProgress(keras.callbacks.Callback):
        """Comes first, and lets a newcomer in before the callbacks after it begin."""

        def __init__(self, progress: Progress):
            super().__init__()
            self._progress = progress

        def on_train_begin(self, logs: Any = None) -> None:
            self._progress.begin()

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._progress.begin_epoch(epoch)

    return FollowProgress


# Decisions.


def _decides_alike(strategy: StrategyBase, writers: Writers | None = None) -> Any:
    """Returns the callback; `writers` are the callbacks that write, where another worker may become the chief."""
    return _alike_class()(strategy, writers)


@functools.cache
def _alike_class() -> type:
    import keras

    class DecideAlike(keras.callbacks.Callback):
        """Comes last, and makes what the callbacks before it have decided the same on all workers."""

        def __init__(self, strategy: StrategyBase, writers: Writers | None):
            super().__init__()
            self._strategy: Any = strategy  # The contract knows no digests.
            self._writers = writers

        def on_train_begin(self, logs: Any = None) -> None:
            if self._writers is not None and self._writers.goes_on:
                return  # The others have agreed on the beginning long ago.
            epoch = int(initial_epoch(self.model) or 0)
            set_initial_epoch(self.model, current_group().exchange("the first epoch of fit", epoch)[0])
            self._make_variables_alike()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            check_same_names(sorted(logs or {}), self._strategy.placement.workers[jax.process_index()])
            self._make_variables_alike()
            self._check_copies()
            stop = bool(self.model.stop_training)
            catch_up = None if self._writers is None else self._writers.catch_up
            self.model.stop_training = current_group().exchange("the end of an epoch of fit", stop, catch_up)[0]
            if self._writers is not None:
                self._writers.settle()

        def on_train_end(self, logs: Any = None) -> None:
            self._make_variables_alike()  # Early stopping may have restored the best ones.

        def _variables(self) -> list[Any]:
            optimizer = self.model.optimizer
            return [*self.model.variables, *(optimizer.variables if optimizer else ())]

        def _make_variables_alike(self) -> None:
            with activity.phase(activity.WAIT, "what callbacks have changed"):
                make_alike(self._strategy, self._variables())

        def _check_copies(self) -> None:
            # A value that is computed from a variable of all (`kernel * 0`) counts as one of all: a callback that
            # assigns it on one worker, or another one on each, would make models of their own.
            if self._writers is None:  # Else workers come and go, and are given the others' values.
                with activity.phase(activity.WAIT, "the copies of variables"):
                    for each in self._strategy._begin_digests(self._variables()):
                        each.check()

    return DecideAlike
