"""Datasets that are for the workers: what a parameter server strategy distributes, as the coordinator sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from replicax.errors import ContextError
from replicax.parameter_server.actors.current import worker_index


class WorkersDataset:
    """A dataset that each worker makes: give it to `ClusterCoordinator.create_per_worker_dataset`.

    Args:
        make: Returns the dataset, on a worker; it is pickled.
        given: The dataset that the strategy was given; None if it was a function.

    Attributes:
        given: As given.
    """

    def __init__(self, make: Callable[[], Any], given: Any = None):
        self._make, self.given = make, given

    def __call__(self) -> Any:
        """Returns the dataset."""
        return self._make()

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass over the dataset, on a worker.

        Raises:
            ContextError: Called on the coordinator, which has no batches.
        """
        if worker_index() is None:
            raise ContextError(
                "A dataset of a ParameterServerStrategy was iterated over on the coordinator: its batches are on the "
                "workers. Pass it to coordinator.create_per_worker_dataset, and next() of iter() of what that returns "
                "belongs into the function that is scheduled. To look at the data here, iterate over the dataset that "
                "you gave to the strategy."
            )
        return iter(self._make())
