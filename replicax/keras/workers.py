"""`Model.fit` on several workers: one of them writes, and all of them decide alike.

Each worker runs Keras's loop with its callbacks. Logs are computed by all workers together, so that callbacks that
decide by them decide alike; what a callback of one worker changes on its own is put right by the chief's word at the
end of each epoch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import replicax.health as health
from replicax.cluster.exchange import exchanged
from replicax.compat.keras import initial_epoch, set_initial_epoch, stop_writing
from replicax.errors import ArgumentError, WorkersDisagreeError
from replicax.host import Host

# The chief does for all whatever these do besides writing.
_WRITERS = ("CSVLogger", "ModelCheckpoint", "OrbaxCheckpoint", "ProgbarLogger", "RemoteMonitor", "TensorBoard")


def has_workers(strategy: Host) -> bool:
    """Returns whether a strategy has devices in several processes."""
    return strategy.placement.spans_processes


@contextlib.contextmanager
def loop_of_workers(given: inspect.BoundArguments, strategy: Host, trains: bool) -> Iterator[None]:
    """Prepares the arguments of a loop for this worker, and lets all workers draw the same random numbers in it.

    Every worker reads the same global batches, so shuffling and random augmentation must be the same everywhere: the
    global generators of NumPy and Python are seeded alike inside the block, and restored.
    """
    if not strategy.placement.is_chief:
        given.arguments["verbose"] = 0
    if "callbacks" in given.signature.parameters:
        given.arguments["callbacks"] = _callbacks(given.arguments.get("callbacks"), strategy, trains)
    numpys, pythons = np.random.get_state(), random.getstate()
    seed = _told_by_all("the seed of a loop of Keras", int(np.random.randint(2**32, dtype=np.uint64)))[0]
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


def _told_by_all(what: str, value: Any) -> list[Any]:
    """Returns the values of all workers, in their order, after all have come here.

    They are exchanged through host memory: a collective would mix with one that a worker has come to elsewhere.

    Args:
        what: What is exchanged.
        value: This worker's, as JSON can hold it.

    Raises:
        WorkersDisagreeError: A worker has come to something else that all do together.
    """
    with health.phase(health.WAIT, what):
        messages = exchanged(json.dumps({"what": what, "value": value}).encode())
    found = [_read(message) for message in messages]
    whats = {f"process {i}": [str(each.get("what", "something else"))] for i, each in enumerate(found)}
    if len({told for (told,) in whats.values()}) > 1:
        raise WorkersDisagreeError("things to do together", whats)
    return [each["value"] for each in found]


def _read(message: bytes) -> dict[str, Any]:
    try:
        found = json.loads(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _callbacks(callbacks: Any, strategy: Host, trains: bool) -> Any:
    """Returns the callbacks that this worker runs."""
    placement = strategy.placement
    last = [_alike_class()(strategy)] if trains else []
    return callbacks_of_worker(callbacks, placement.is_chief, last, placement.shards_variables)


def callbacks_of_worker(callbacks: Any, is_chief: bool, last: Sequence[Any] = (), sends_shards: bool = False) -> Any:
    """Returns the callbacks that a worker runs: only the chief's write.

    Args:
        callbacks: What the user has given: a callback, a list of them, a `CallbackList`, or None.
        is_chief: Whether this worker is the chief.
        last: Callbacks that come after them.
        sends_shards: Whether the others send it what it writes: then those that save run on them too.

    Raises:
        ArgumentError: With `sends_shards`, a callback would read variables on the chief alone.
    """
    import keras

    held = getattr(callbacks, "callbacks", None)  # of a CallbackList
    given = list(held) if held is not None else [] if callbacks is None else callbacks
    given = list(given) if isinstance(given, (list, tuple)) else [given]
    for callback in given if sends_shards else ():
        _check_reads_no_shards(callback)
    if not is_chief:
        saves = keras.callbacks.ModelCheckpoint if sends_shards else ()
        given = [callback for callback in given if isinstance(callback, saves) or not _writes(callback)]
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


def _writes(callback: Any) -> bool:
    return any(base.__name__ in _WRITERS for base in type(callback).__mro__)


@functools.cache
def _alike_class() -> type:
    import keras

    class DecideAlike(keras.callbacks.Callback):
        """Comes last, and makes what the callbacks before it have decided the same on all workers."""

        def __init__(self, strategy: Host):
            super().__init__()
            self._strategy = strategy

        def on_train_begin(self, logs: Any = None) -> None:
            epoch = int(initial_epoch(self.model) or 0)
            set_initial_epoch(self.model, _told_by_all("the first epoch of fit", epoch)[0])
            self._make_variables_alike()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            check_same_names(sorted(logs or {}), self._strategy.placement.workers)
            self._make_variables_alike()
            stop = bool(self.model.stop_training)
            self.model.stop_training = _told_by_all("the end of an epoch of fit", stop)[0]

        def on_train_end(self, logs: Any = None) -> None:
            self._make_variables_alike()  # Early stopping may have restored the best ones.

        def _make_variables_alike(self) -> None:
            optimizer = self.model.optimizer
            variables = [*self.model.variables, *(optimizer.variables if optimizer else ())]
            with health.phase(health.WAIT, "what callbacks have changed"):
                self._strategy.placement.make_alike(variables)

    return DecideAlike


def check_same_names(names: list[str], workers: tuple[str, ...]) -> None:
    """Checks that all workers log the same values; all of them call this together.

    Raises:
        WorkersDisagreeError: They do not.
    """
    logged = _told_by_all("the names of logs", names)
    if all(own == logged[0] for own in logged):
        return
    common = set(logged[0]).intersection(*logged[1:])
    odd = {worker: sorted(set(own) - common) for worker, own in zip(workers, logged, strict=True)}
    raise WorkersDisagreeError("logs", {worker: own for worker, own in odd.items() if own})
