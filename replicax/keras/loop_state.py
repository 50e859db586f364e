"""Where a `fit` is, so that a worker that comes later can go on with the others in the middle of it.

Between two batches of training the others give a newcomer their variables (`strategies/newcomer_state.py`), and here
what else there is: the epoch, how many batches were taken, the random generators from which the order of the data was
drawn, the history, and the state of Keras's callbacks. The newcomer draws the same order, passes over the batches that
were taken, and makes the next step with the others.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replicax.checkpoint.joining import OF_FIT
from replicax.cluster.signing import pickled, unpickled
from replicax.compat.keras import set_initial_epoch, set_steps_seen
from replicax.contracts.group import Group
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import array_of, set_array
from replicax.errors import ElasticError
from replicax.keras.chief_writes import Writers
from replicax.keras.random_state import Generators
from replicax.typing import PyTree

_PLACE = "the place of a fit"

if TYPE_CHECKING:
    import keras


class Position(NamedTuple):
    """The place of a `fit` between two batches."""

    epoch: int
    steps: int  # made in the epoch
    taken: int  # batches, from the iterator of the data, which may serve several epochs
    drawn: Generators | None  # when the first of these batches was taken; None before
    now: Generators
    history: tuple[dict[str, list[Any]], list[int]]  # the attributes `history` and `epoch` of Keras's `History`
    callbacks: dict[str, Any]  # their states
    writers: list[tuple[int, int]]  # how many steps the callbacks that write have counted
    dataset: dict[str, object] | None  # the state of the distributed dataset; None for other data


class Progress:
    """The progress of a `fit` where workers come and go; `contracts.group.State` says what `give` and `take` do."""

    def __init__(
        self,
        model: keras.Model,
        strategy: StrategyBase,
        group: Group,
        writers: Writers,
        callbacks: Sequence[Any],
        dataset: Any,
        takes_in: bool,
    ):
        self._model, self._strategy, self._group, self._writers = model, strategy, group, writers
        # The dataset is None for data that is not distributed. Newcomers come to the first `fit`, so no other one takes
        # them in.
        self._callbacks, self._dataset, self._takes_in = callbacks, dataset, takes_in
        self.epoch_iterator: Any = None
        self._epoch = self._steps = self._taken = self._left = 0
        self._iterator: Iterator[PyTree] | None = None
        self._drawn: Generators | None = None
        self._given: Position | None = None
        self._logs: PyTree = None
        self._metrics: list[Any] = []

    # The state of a fit.

    def is_boundary(self, places: Sequence[object]) -> bool:
        """Returns whether `fit` itself asks whether a newcomer may come in; a dataset that it reads must not."""
        return self._takes_in and not places

    def give(self) -> tuple[Sequence[np.ndarray], bytes]:
        """Returns the place of this fit."""
        history = self._model.history
        position = Position(
            self._epoch,
            self._steps,
            self._taken,
            self._drawn,
            Generators.here(),
            (dict(history.history), list(history.epoch)),
            states_of_callbacks(self._callbacks),
            self._writers.steps,
            None if self._dataset is None else self._state_of(self._dataset),
        )
        return [], OF_FIT + pickled(_PLACE, position)

    def _state_of(self, dataset: Any) -> dict[str, object]:
        """Returns where a distributed dataset is; at the beginning of an epoch that is the next pass."""
        state: dict[str, Any] = dataset.get_state()
        return state if self._taken else {"format": state["format"], "pass": state["pass"] + 1, "rows": 0, "batches": 0}

    def take(self, arrays: Sequence[np.ndarray], meta: bytes) -> None:
        """Takes the place of the others' fit."""
        del arrays
        if not meta.startswith(OF_FIT):
            raise ElasticError(
                "This worker waits in Model.fit to join the others, and they have come to a strategy.join(checkpoint). "
                "All workers must run the same script."
            )
        self._given = unpickled(_PLACE, meta[len(OF_FIT) :])

    # For callbacks.

    @property
    def has_joined(self) -> bool:
        """Whether this process has come to a `fit` that others have begun."""
        return self._writers.goes_on

    def begin(self) -> None:
        """Waits until the others take this process in, if it is a newcomer. All variables exist now."""
        if self._group.is_member:
            return
        self._group.join()
        if self._given is None:
            return
        optimizer = self._model.optimizer
        metrics = list(self._model.metrics_variables)
        self._strategy.placement.follow([*self._model.variables, *(optimizer.variables if optimizer else ()), *metrics])
        self._metrics = [(variable, array_of(variable)) for variable in metrics]
        self._writers.goes_on = True
        set_initial_epoch(self._model, self._given.epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Called when an epoch begins, before all callbacks; a newcomer takes their states."""
        self._epoch, self._steps = epoch, 0
        given = self._given
        if given is None:
            return
        set_initial_epoch(self._model, None)  # Another `fit` begins where it is told to.
        history = self._model.history
        history.history, history.epoch = given.history
        set_callback_states(self._callbacks, given.callbacks)
        self._writers.steps = given.writers
        for variable, value in self._metrics:  # Keras has reset them.
            set_array(variable, value)
        self._left = given.steps
        if self._left:
            self._writers.is_muted = True
            self._logs = self._model.get_metrics_result()

    # For steps.

    def passes(self, iterator: Iterator[PyTree]) -> bool:
        """Returns whether the next step is one that the others have made before this process has come."""
        if self._given is not None:
            if self._iterator is None:
                self._find_place(iterator, self._given)
            if self._left:
                self._left -= 1
                self._count()
                if self._dataset is None:
                    next(iterator)
                return True
            self._given.now.set()
            self._given, self._writers.is_muted = None, False
        else:
            if iterator is not self._iterator:
                self._iterator, self._taken, self._drawn = iterator, 0, None
            if self._takes_in:
                self._group.boundary()
        if self._drawn is None:  # The first batch is drawn next: one that comes later must draw the same.
            self._drawn = Generators.here()
        return False

    @property
    def logs(self) -> PyTree:
        """The logs of steps that this process passes over."""
        return self._logs

    def count(self) -> None:
        """Counts a step that was made."""
        self._count()
        self._taken += 1

    def _count(self) -> None:
        self._steps += 1

    def _find_place(self, iterator: Iterator[PyTree], given: Position) -> None:
        """Passes over the batches that an iterator has given in earlier epochs."""
        self._iterator, self._taken, self._drawn = iterator, given.taken, given.drawn
        earlier = given.taken - given.steps
        if self._dataset is not None and given.dataset is not None:
            self._dataset.set_state(given.dataset)
        elif given.drawn is not None:
            given.drawn.set()
            for _ in range(earlier):
                next(iterator)
        if earlier > 0 and self.epoch_iterator is not None:
            set_steps_seen(self.epoch_iterator, earlier)


# The states of callbacks: those of a worker that comes later, or of a `fit` that continues, go on from them.


# By the names of classes. A version of Keras may lack some of the attributes.
_ATTRIBUTES = {
    "EarlyStopping": ("best", "best_epoch", "best_weights", "stopped_epoch", "wait"),
    "ReduceLROnPlateau": ("best", "cooldown_counter", "wait"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "BackupAndRestore": ("_batches_seen_since_last_saving", "_last_batch_seen"),
}


def states_of_callbacks(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Returns the states of callbacks that have one, by their classes and numbers among those of a class."""
    return {name: state for name, each in _named(callbacks) if (state := _state(each)) is not None}


def _named(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    counts: collections.Counter[str] = collections.Counter()
    for callback in callbacks:
        kind = type(callback).__name__
        yield f"{kind} {counts[kind]}", callback
        counts[kind] += 1


def _state(callback: Any) -> Any:
    if _has_state(callback):
        return callback.get_state()
    names = _known(callback)
    return {name: getattr(callback, name) for name in names if hasattr(callback, name)} or None


def set_callback_states(callbacks: Sequence[Any], states: Mapping[str, Any]) -> None:
    """Gives callbacks the states of others of these names."""
    for name, callback in _named(callbacks):
        if (state := states.get(name)) is None:
            continue
        if _has_state(callback):
            callback.set_state(state)
            continue
        for attribute in _known(callback):
            if attribute in state:
                setattr(callback, attribute, state[attribute])


def _has_state(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _known(callback: Any) -> list[str]:
    return [name for base in type(callback).__mro__ for name in _ATTRIBUTES.get(base.__name__, ())]
