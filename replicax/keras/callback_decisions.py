"""A callback that comes last, and makes what the callbacks before it have decided the same on all workers."""

from __future__ import annotations

import functools
from typing import Any

import jax

import replicax.runtime.activity as activity
from replicax.compat.keras import initial_epoch, set_initial_epoch
from replicax.contracts.strategy import StrategyBase
from replicax.keras.all_workers import check_same_names, make_alike, told_by_all
from replicax.keras.writing_callbacks import Writers


def decides_alike(strategy: StrategyBase, writers: Writers | None = None) -> Any:
    """Returns the callback; `writers` are the callbacks that write, where another worker may become the chief."""
    return _alike_class()(strategy, writers)


@functools.cache
def _alike_class() -> type:
    import keras

    class DecideAlike(keras.callbacks.Callback):
        """Comes last, and makes what the callbacks before it have decided the same on all workers."""

        def __init__(self, strategy: StrategyBase, writers: Writers | None):
            super().__init__()
            self._strategy, self._writers = strategy, writers

        def on_train_begin(self, logs: Any = None) -> None:
            if self._writers is not None and self._writers.goes_on:
                return  # The others have agreed on the beginning long ago.
            epoch = int(initial_epoch(self.model) or 0)
            set_initial_epoch(self.model, told_by_all("the first epoch of fit", epoch)[0])
            self._make_variables_alike()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            check_same_names(sorted(logs or {}), self._strategy.placement.workers[jax.process_index()])
            self._make_variables_alike()
            stop = bool(self.model.stop_training)
            catch_up = None if self._writers is None else self._writers.catch_up
            self.model.stop_training = told_by_all("the end of an epoch of fit", stop, catch_up)[0]
            if self._writers is not None:
                self._writers.settle()

        def on_train_end(self, logs: Any = None) -> None:
            self._make_variables_alike()  # Early stopping may have restored the best ones.

        def _make_variables_alike(self) -> None:
            optimizer = self.model.optimizer
            variables = [*self.model.variables, *(optimizer.variables if optimizer else ())]
            with activity.phase(activity.WAIT, "what callbacks have changed"):
                make_alike(self._strategy, variables)

    return DecideAlike
