"""`RunningSteps`: Keras's steps that have been scheduled and may not have ended."""

from __future__ import annotations

import collections
from collections.abc import Callable

from replicax.parameter_server.coordinator import ClusterCoordinator
from replicax.parameter_server.scheduling.remote_values import RemoteValue
from replicax.typing import PyTree, PyTreeFunction

_STEPS_AHEAD = 4  # for each worker: two that it has, and two that are queued, so that it never waits


class RunningSteps:
    """Steps that have been scheduled and may not have ended. They are few, since callbacks act on those that follow.

    Args:
        coordinator: Schedules them.
        taken: Called with the result of each, in the order in which they were scheduled.
    """

    def __init__(self, coordinator: ClusterCoordinator, taken: Callable[[PyTree], None]):
        self._coordinator, self._taken = coordinator, taken
        self._values: collections.deque[RemoteValue] = collections.deque()
        self._most = _STEPS_AHEAD * coordinator.strategy.cluster.workers

    def schedule(self, step: PyTreeFunction, *args: PyTree) -> None:
        """Schedules a step; waits while too many are running."""
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
