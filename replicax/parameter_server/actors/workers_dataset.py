"""`WorkersDataset`: what the coordinator has of a dataset that each worker makes for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import replicax.context as context
from replicax.errors import ContextError
from replicax.typing import PyTree


class WorkersDataset:
    """A dataset that each worker makes: give it to `ClusterCoordinator.create_per_worker_dataset`."""

    def __init__(self, make: Callable[[], Iterable[PyTree]], given: Iterable[PyTree] | None = None):
        self._make, self.given = make, given  # pickled; None if the strategy was given a function

    def __call__(self) -> Iterable[PyTree]:
        return self._make()

    def __iter__(self) -> Iterator[PyTree]:
        """Begins a pass over the dataset, on a worker."""
        if context.current().worker_index is None:
            raise ContextError(
                "A dataset of a ParameterServerStrategy was iterated over on the coordinator: its batches are on the "
                "workers. Pass it to coordinator.create_per_worker_dataset, and call next() on an iterator of what "
                "that returns in the scheduled function. To look at the data here, iterate over the dataset that "
                "you gave to the strategy."
            )
        return iter(self._make())
