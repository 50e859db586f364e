"""`Model.fit` on several workers: one of them writes, and all of them decide alike.

Each worker runs Keras's loop with its callbacks. Logs are computed by all workers together, so that callbacks that
decide by them decide alike; what a callback of one worker changes on its own is put right by the chief's word at the
end of each epoch.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import random
import types
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from replicax.compat.keras import stop_writing
from replicax.contracts.strategy import StrategyBase
from replicax.data.input_steps import digest
from replicax.errors import ArgumentError, BatchError
from replicax.keras.all_workers import is_elastic, told_by_all
from replicax.keras.callback_decisions import decides_alike
from replicax.keras.elastic_loops import elastic_callbacks
from replicax.keras.random_state import set_told_generators, told_generators
from replicax.keras.writing_callbacks import SAVERS, WRITERS, is_a


@contextlib.contextmanager
def loop_of_workers(given: inspect.BoundArguments, strategy: StrategyBase, loop: str) -> Iterator[None]:
    """Prepares the arguments of a loop for this worker, and lets all workers draw the same random numbers in it."""
    trains = loop == "fit"
    if is_elastic(strategy):  # Seeded alike for the loop: the chief may have come after it began.
        with elastic_callbacks(given, strategy, trains), _seeded_alike(loop):
            yield
        return
    if not strategy.placement.is_chief:
        given.arguments["verbose"] = 0
    if "callbacks" in given.signature.parameters:
        given.arguments["callbacks"] = _callbacks(given.arguments.get("callbacks"), strategy, trains)
    _begin_alike(given, strategy, loop)
    yield


def _begin_alike(given: inspect.BoundArguments, strategy: StrategyBase, loop: str) -> None:
    """Gives the generators of all workers the chief's state, and checks that all have the same data."""
    # Every worker reads the same global batches, so shuffling and random augmentation must be the same everywhere: the
    # global generators of NumPy and Python go on from the chief's state, and have advanced alike afterwards.
    own = told_generators() if strategy.placement.is_chief else None
    told = told_by_all(loop, [own, _described(given)])
    for name in sorted({name for _, each in told for name in each}):
        found = [each.get(name, "nothing") for _, each in told]
        if any(each != found[0] for each in found):
            shown = "; ".join(f"{w}: {each}" for w, each in zip(strategy.placement.workers, found, strict=True))
            raise BatchError(
                f"The workers call {loop} with different data. `{name}`: {shown}. All must give it the same global "
                "batches in the same order, and each computes its own rows of them: give shuffles the same seed on "
                "every worker. For data of a worker's own use distribute_dataset with auto_shard_policy='off'."
            )
    set_told_generators(told[0][0])


def _described(given: inspect.BoundArguments) -> dict[str, str]:
    """Returns words for the arguments of a loop, the same where the data are; nothing for what cannot be compared."""
    if isinstance(given.arguments.get("x"), types.GeneratorType):
        first = list(itertools.islice(given.arguments["x"], 1))
        given.arguments["x"] = _again(first, given.arguments["x"])
        return {"x": _words(first)}
    return {name: words for name, value in given.arguments.items() if (words := _words(value)) and name != "verbose"}


def _again(first: Sequence[Any], rest: Iterator[Any]) -> Iterator[Any]:
    """Yields what was looked at, and then the rest; Keras wants a generator."""
    yield from first
    yield from rest


def _words(value: Any) -> str:
    if isinstance(value, (bool, int, float)):
        return repr(value)
    arrays = [leaf for leaf in jax.tree_util.tree_leaves(value) if isinstance(leaf, (np.ndarray, jax.Array))]
    here = [
        leaf
        for leaf in arrays
        if leaf.ndim and not leaf.dtype.hasobject and getattr(leaf, "is_fully_addressable", True)
    ]
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)} of digest {digest(leaf, rows=16)}" for leaf in here if len(leaf))


@contextlib.contextmanager
def _seeded_alike(loop: str) -> Iterator[None]:
    """Seeds the generators of all workers alike for a `with` block."""
    numpys, pythons = np.random.get_state(), random.getstate()
    seed = told_by_all(loop, int(np.random.randint(2**32, dtype=np.uint64)))[0]
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


def _callbacks(callbacks: Any, strategy: StrategyBase, trains: bool) -> Any:
    """Returns the callbacks that this worker runs."""
    placement = strategy.placement
    last = [decides_alike(strategy)] if trains else []
    return callbacks_of_worker(callbacks, placement.is_chief, last, placement.shards_variables)


def callbacks_of_worker(callbacks: Any, is_chief: bool, last: Sequence[Any] = (), sends_shards: bool = False) -> Any:
    """Returns the callbacks that a worker runs, with `last` after them: only the chief's write."""
    import keras

    held = getattr(callbacks, "callbacks", None)  # of a CallbackList
    given = list(held) if held is not None else [] if callbacks is None else callbacks
    given = list(given) if isinstance(given, (list, tuple)) else [given]
    for callback in given if sends_shards else ():
        _check_reads_no_shards(callback)
    if not is_chief:
        # Where the others send the chief their shards of what it writes, the callbacks that save run on them too.
        saves = keras.callbacks.ModelCheckpoint if sends_shards else ()
        given = [callback for callback in given if isinstance(callback, saves) or not is_a(callback, WRITERS + SAVERS)]
        for callback in given:
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                stop_writing(callback, sends_shards)  # Every worker must restore what it restores.
            elif isinstance(callback, saves):
                callback.verbose, callback.filepath = 0, os.path.basename(callback.filepath)  # The chief makes folders.
    given.extend(last)
    if held is None:
        return given
    callbacks.callbacks = given
    return callbacks


def _check_reads_no_shards(callback: Any) -> None:
    kinds = {base.__name__ for base in type(callback).__mro__}
    if "OrbaxCheckpoint" in kinds:
        raise ArgumentError(
            "keras.callbacks.OrbaxCheckpoint writes on the chief, which has its shards of the variables only. Use "
            "keras.callbacks.ModelCheckpoint or BackupAndRestore, or rx.CheckpointManager."
        )
    if "TensorBoard" in kinds and (callback.histogram_freq or callback.embeddings_freq):
        raise ArgumentError(
            "TensorBoard(histogram_freq=..., embeddings_freq=...) reads variables on the chief, which has its shards "
            "of them only. Leave these frequencies out."
        )
