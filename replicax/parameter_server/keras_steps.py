"""Keras's functional steps as functions that can be scheduled, and the steps that have been."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from replicax.keras.cutting import gradients_marked
from replicax.parameter_server.coordinator import ClusterCoordinator
from replicax.parameter_server.scheduling.remote_values import RemoteValue

_STEPS_AHEAD = 4  # for each worker: two that it has, and two that wait, so that it need not


class KerasSteps:
    """Makes functions of a batch that read and assign a model's variables.

    Args:
        model: The model, with all its variables.
    """

    def __init__(self, model: Any):
        self._model = model

    def train(self) -> Callable[[Any], Any]:
        """Returns the function that makes a training step."""
        model = self._model
        groups = [*self._layers_variables(), model.optimizer.variables, model.metrics_variables]
        return _stateful(model.train_step, groups, model.optimizer)

    def test(self) -> Callable[[Any], Any]:
        """Returns the function that makes an evaluation step."""
        return _stateful(self._model.test_step, [*self._layers_variables(), self._model.metrics_variables])

    def predict(self) -> Callable[[Any], Any]:
        """Returns the function that predicts for a batch."""
        model = self._model

        def predict_step(state: Any, data: Any) -> Any:
            outputs, non_trainable = model.predict_step(state, data)
            return outputs, (state[0], non_trainable)

        return _stateful(predict_step, self._layers_variables())

    def _layers_variables(self) -> list[Any]:
        return [self._model.trainable_variables, self._model.non_trainable_variables]


def _stateful(step: Callable[..., Any], groups: Sequence[Sequence[Any]], optimizer: Any = None) -> Callable[[Any], Any]:
    def scheduled(data: Any) -> Any:
        state = tuple([variable.value for variable in group] for group in groups)
        with gradients_marked(optimizer):
            outputs, new_state = step(state, data)
        variables, old, new = (itertools.chain(*nest) for nest in (groups, state, new_state))
        for variable, before, after in zip(variables, old, new, strict=True):
            if after is not before:
                variable.assign(after)
        return outputs

    scheduled.__name__ = scheduled.__qualname__ = step.__name__
    return scheduled


class UnderWay:
    """Steps that have been scheduled and may not be through. There are never many: callbacks act on what follows.

    Args:
        coordinator: Schedules them.
        taken: Called with the result of each, in the order in which they were scheduled.
    """

    def __init__(self, coordinator: ClusterCoordinator, taken: Callable[[Any], None]):
        self._coordinator, self._taken = coordinator, taken
        self._values: collections.deque[RemoteValue] = collections.deque()
        self._most = _STEPS_AHEAD * coordinator.strategy.cluster.workers

    def schedule(self, step: Callable[..., Any], *args: Any) -> None:
        """Schedules a step; waits while too many are under way."""
        while len(self._values) >= self._most:
            self._take()
        self._values.append(self._coordinator.schedule(step, args))
        while self._values and self._values[0].is_ready:
            self._take()

    def join(self) -> None:
        """Waits for all of them."""
        while self._values:
            self._take()

    def _take(self) -> None:
        try:
            result = self._values.popleft().fetch()
        except Exception:
            self._coordinator.join()  # It raises the first error, of which this one may be a consequence.
            raise
        self._taken(result)
