"""`RemoteWorker`: a worker as an actor. It returns errors instead of raising them, so that they keep their types."""

from __future__ import annotations

import jax
import numpy as np

from replicax.parameter_server.actors.actor_errors import Raised, raised
from replicax.parameter_server.actors.messages import ArraySpecs, Done, ServerLost, StepCall, UnexpectedBatch
from replicax.parameter_server.actors.worker import Worker

CALLS_AT_ONCE = 8  # two steps, and what comes between: looking at batches
WATCH, SET_UP = "watch", "set_up"
# They have threads of their own: a worker that computes still answers, and steps do not block what they wait for.
THREADS = {WATCH: 1, SET_UP: 1}


class RemoteWorker(Worker):
    """A worker in a process of its own."""

    def run(self, step: StepCall) -> Done | UnexpectedBatch | ServerLost | Raised:  # type: ignore[override]
        """Makes a step."""
        try:
            return super().run(step)
        except Exception as error:
            return raised(error)

    def structure(  # type: ignore[override]
        self, kind: str, number: int, set_up: int
    ) -> tuple[jax.tree_util.PyTreeDef, ArraySpecs] | Raised:
        """Returns the structure of the next batch of an iterator, or of a resource."""
        try:
            return super().structure(kind, number, set_up)
        except Exception as error:
            return raised(error)

    def resource(self, number: int, set_up: int) -> list[np.ndarray] | Raised:  # type: ignore[override]
        """Returns the arrays of a resource."""
        try:
            return super().resource(number, set_up)
        except Exception as error:
            return raised(error)
