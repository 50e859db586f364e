"""Keras's steps that have been scheduled and may not be through."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from replicax.parameter_server.coordinator import ClusterCoordinator
from replicax.parameter_server.scheduling.remote_values import RemoteValue

_STEPS_AHEAD = 4  # for each worker: two that it has, and two that wait, so that it need not


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
