"""The loop of a training on parameter servers: its steps are scheduled on workers, several at a time."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

import jax

from replicax.errors import CancelledError, EndOfDataError
from replicax.estimator.hook_list import Hooks
from replicax.estimator.hooks import HookContext
from replicax.estimator.saving import Saving
from replicax.estimator.steps import ModelSteps
from replicax.parameter_server import ClusterCoordinator
from replicax.program import function
from replicax.typing import PyTree

if TYPE_CHECKING:
    from replicax.parameter_server.coordinator import CoordinatedStrategy
    from replicax.parameter_server.scheduling.remote_values import RemoteValue

_STEPS_AHEAD = 4  # for each worker, so that it never waits


class ScheduledSteps:
    """Training steps that are under way on workers."""

    def __init__(
        self,
        batches: Iterator[PyTree],
        steps: ModelSteps,
        hooks: Hooks,
        context: HookContext,
        limit: int | None,
        saving: Saving,
    ):
        strategy = cast("CoordinatedStrategy", steps.strategy)
        self._batches, self._hooks, self._context, self._saving = batches, hooks, context, saving
        self._coordinator = ClusterCoordinator(strategy)
        self._most = _STEPS_AHEAD * strategy.cluster.workers
        self._end = None if limit is None else context.step + limit
        self._scheduled = context.step
        self._running: collections.deque[RemoteValue] = collections.deque()
        self._train = function(steps.train)
        self._has_ended = False

    def run(self) -> None:
        """Runs them until a hook asks to stop, or there are no more batches; all have ended then."""
        while not self._context.stop_requested and not self._has_ended:
            if len(self._running) < self._most and self._may_schedule():
                self._schedule()
            elif self._running:
                self._take()
            else:
                return
        while self._running:
            self._take()

    def _may_schedule(self) -> bool:
        """Returns whether a step may begin: none while those before a checkpoint are under way, none after the end."""
        if self._end is not None and self._scheduled >= self._end:
            return False
        save_at = self._saving.next_step()
        return not self._saving.is_due() and (save_at is None or self._scheduled < save_at)

    def _schedule(self) -> None:
        end = object()
        batch = next(self._batches, end)  # or an iterator of the workers' own batches
        if batch is end:
            self._has_ended = True
            return
        self._hooks.call("before_step", self._context)
        try:
            self._running.append(self._coordinator.schedule(self._train, args=(batch,)))
        except EndOfDataError:  # of a step before it
            self._has_ended = True
            return
        self._scheduled += 1

    def _take(self) -> None:
        """Waits for the step that was scheduled first."""
        try:
            values: Mapping[str, jax.Array] = self._running.popleft().fetch()
        except (EndOfDataError, CancelledError) as error:
            self._end_of_data(error)
            return
        except Exception:
            self._coordinator.join()  # It raises the first error, of which this one may be a consequence.
            raise
        # A step counts when its worker has answered, in the order of scheduling.
        self._context.note_step(self._context.step + 1, values)
        self._hooks.call("after_step", self._context)
        if not self._running:  # All steps have ended when a checkpoint is saved.
            self._saving.save_if_due()

    def _end_of_data(self, error: Exception) -> None:
        """A worker has no batches any more, and with it the training ends; what was queued is cancelled."""
        if self._has_ended:
            return
        self._has_ended = True
        try:
            self._coordinator.join()
        except EndOfDataError:
            return
        raise error


def run_scheduled(
    batches: Iterator[PyTree], steps: ModelSteps, hooks: Hooks, context: HookContext, limit: int | None, saving: Saving
) -> None:
    """Runs the training steps of a model on the workers; see `ScheduledSteps`."""
    ScheduledSteps(batches, steps, hooks, context, limit, saving).run()
