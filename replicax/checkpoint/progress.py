"""At which step a training is between its saves, for a worker that joins it then."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicax.checkpoint.checkpoint import Checkpoint
from replicax.checkpoint.manager_arguments import whole_number
from replicax.checkpoint.variable_names import keras_objects
from replicax.contracts.variable_access import VariableLike, is_variable
from replicax.errors import ElasticError
from replicax.typing import PyTree

_STEP = "step"


class Progress:
    """Counts steps since the last save or restore, by what a checkpoint tracks."""

    def __init__(self, checkpoint: Checkpoint, counter: VariableLike | None):
        self._checkpoint, self._counter = checkpoint, counter
        self._step: int | None = 0
        self._updates = self._count()

    def note(self, step: int) -> None:
        """Notes that the training is at a step."""
        self._step, self._updates = step, self._count()

    def get_state(self) -> dict[str, PyTree]:
        """Returns at which step the training is now."""
        return {_STEP: self._now()}

    def set_state(self, state: Mapping[str, PyTree]) -> None:
        """Notes at which step another worker's training is; the objects have the state that it has there."""
        self._step, self._updates = state[_STEP], self._count()

    def step_of_others(self, directory: Path) -> int:
        """Returns the step at which the others were when they gave their state."""
        if self._step is None:
            raise ElasticError(
                f"The manager of {directory} cannot say at which step the others are: its checkpoint tracks nothing "
                "that counts steps. Give the manager a step_counter, or add step=rx.Variable(0) to the checkpoint and "
                "count it up in each step."
            )
        return self._step

    def _now(self) -> int | None:
        # The first that there is: the manager's `step_counter`; a variable called `step` in the checkpoint; the number
        # of updates of the first Keras optimizer in it since a step whose number was known.
        counter = self._counter
        if counter is None and is_variable(self._checkpoint.objects.get(_STEP)):
            counter = self._checkpoint.objects[_STEP]
        if counter is not None:
            return whole_number(counter, _STEP)
        updates = self._count()
        if updates is None or self._updates is None or self._step is None:
            return None
        return self._step + updates - self._updates

    def _count(self) -> int | None:
        optimizer = self._optimizer()
        return None if optimizer is None else int(optimizer.iterations.numpy())

    def _optimizer(self) -> Any:
        if "keras" not in sys.modules:
            return None
        import keras

        found = keras_objects(self._checkpoint.objects).values()
        return next((each for each in found if isinstance(each, keras.optimizers.Optimizer)), None)
