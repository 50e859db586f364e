"""When a `CheckpointManager` saves: at every so many steps, or whenever a counter has grown by so much."""

from __future__ import annotations

from replicax.checkpoint.manager_arguments import whole_number
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError


class SaveInterval:
    """Decides whether it is time to save: at multiples of `steps`, or when `counter` has grown by `growth`."""

    def __init__(self, steps: int, counter: VariableLike | None, growth: int | None):
        if growth is not None and (counter is None or steps != 1):
            raise ArgumentError(
                "`checkpoint_interval` is the growth of `step_counter` between saves, so it needs one, and excludes "
                "`save_interval_steps`."
            )
        self.growth = growth
        self._steps, self._counter = steps, counter
        self.last: int | None = None  # the counter at the last save or restore

    def is_over(self, step: int | None) -> bool:
        """Returns whether it is time to save at a step; None is a step without a number."""
        if self.growth is not None:
            count = whole_number(self._counter, "step_counter")
            return self.last is None or count >= self.last + self.growth
        return step is None or step % self._steps == 0

    def restart(self) -> None:
        """Begins the next interval, after a save or restore."""
        if self.growth is not None:
            self.last = whole_number(self._counter, "step_counter")
