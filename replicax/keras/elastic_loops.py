"""Loops of Keras where workers may come and go: each worker has all callbacks, and the chief of the moment writes."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from replicax.compat.keras import epoch_iterator_noted
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.worlds import Worlds, running
from replicax.keras.callback_decisions import decides_alike
from replicax.keras.feeding import dataset_of
from replicax.keras.progress import Progress
from replicax.keras.writing_callbacks import Writers

if TYPE_CHECKING:
    import keras


@contextlib.contextmanager
def elastic_callbacks(given: inspect.BoundArguments, strategy: StrategyBase, trains: bool) -> Iterator[None]:
    """Prepares the callbacks of a loop, for a `with` block."""
    import keras

    callbacks, model = given.arguments.get("callbacks"), given.arguments["self"]
    held = getattr(callbacks, "callbacks", None)  # of a CallbackList
    if held is not None and model._replicax.loops:
        yield  # The callbacks are those of the `fit` that validates.
        return
    own = held if held is not None else [] if callbacks is None else callbacks
    own = list(own) if isinstance(own, (list, tuple)) else [own]
    has_bar = held is not None or any(isinstance(each, keras.callbacks.ProgbarLogger) for each in own)
    if given.arguments.get("verbose", "auto") != 0 and not has_bar:
        own.append(keras.callbacks.ProgbarLogger())  # Keras would add it, for all workers.
    writers = Writers(own, strategy)
    worlds = running()
    assert worlds is not None
    with contextlib.ExitStack() as stack:
        stack.enter_context(writers.installed())
        first, last = [], []
        if trains:
            progress = _progress(given, strategy, worlds, writers, own)
            stack.enter_context(_given_to_newcomers(progress, model, worlds))
            first, last = [_first_class()(progress)], [decides_alike(strategy, writers)]
        if callbacks is None or held is None:
            given.arguments["callbacks"] = [*first, *own, *last]
        else:
            for callback in (*first, *last):
                callback.set_model(model)
                callback.set_params(callbacks.params)
            callbacks.callbacks = [*first, *own, *last]
        yield


def _progress(
    given: inspect.BoundArguments, strategy: StrategyBase, worlds: Worlds, writers: Writers, callbacks: Sequence[Any]
) -> Progress:
    model = given.arguments["self"]
    model._replicax.fits += 1
    takes_in = model._replicax.fits == 1 and not isinstance(worlds.state, Progress)
    dataset = dataset_of(given.arguments.get("x"))
    return Progress(model, strategy, worlds, writers, callbacks, dataset, takes_in)


@contextlib.contextmanager
def _given_to_newcomers(progress: Progress, model: keras.Model, worlds: Worlds) -> Iterator[None]:
    """Lets workers that come in a `with` block join a `fit`."""
    membership: Any = model._replicax
    before, membership.progress = membership.progress, progress
    state = worlds.state
    if not isinstance(state, Progress):  # A `fit` in a callback of another one lets nobody in.
        worlds.state = progress

    def note(epoch_iterator: object) -> None:
        progress.epoch_iterator = progress.epoch_iterator or epoch_iterator  # The first is that of the training data.

    try:
        with epoch_iterator_noted(model, note):
            yield
    finally:
        membership.progress, worlds.state = before, state


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
