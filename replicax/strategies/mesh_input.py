"""The data of strategies over a mesh: split over the replicas, and over the workers that feed them."""

from __future__ import annotations

from collections.abc import Callable

import jax

from replicax.data import (
    DistributedDataset,
    DistributedDatasetFromFunction,
    InputContext,
    InputOptions,
    InputWorkers,
)
from replicax.data.fed_replicas import Receivers
from replicax.strategies.values_from_function import ValuesFromFunction
from replicax.typing import PyTree


class MeshInput(ValuesFromFunction):
    """A strategy over a mesh, as it distributes data."""

    def distribute_dataset(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> DistributedDataset:
        """Splits each global batch of `dataset` over the replicas."""
        return DistributedDataset(
            dataset,
            num_replicas=self.num_replicas_in_sync,
            mesh_for=self.placement.mesh_for,
            options=options,
            batch_size=batch_size,
            workers=self._input_workers(),
            advice=self.advice,
            anew=self._receivers,
        )

    def _dataset_of_report(
        self, dataset: PyTree, options: InputOptions | None, batch_size: int | None
    ) -> DistributedDataset:
        return self.distribute_dataset(dataset, options, batch_size=batch_size)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], PyTree], options: InputOptions | None = None
    ) -> DistributedDatasetFromFunction:
        """Distributes the per-replica batches of the dataset that `dataset_fn` returns."""
        return DistributedDatasetFromFunction(
            dataset_fn,
            num_replicas=self.num_replicas_in_sync,
            mesh_for=self.placement.mesh_for,
            options=options,
            workers=self._input_workers(),
            anew=self._receivers,
        )

    def _receivers(self) -> Receivers:
        """Returns the replicas that datasets feed in the present world."""
        return Receivers.of(self.num_replicas_in_sync, self.placement.mesh_for, self._input_workers())

    def _input_workers(self) -> InputWorkers | None:
        """Those who feed the replicas; None if this process feeds all of them."""
        if not self.placement.spans_processes:
            return None
        read, fed = self.placement.processes.readers_and_fed()
        return InputWorkers(jax.process_index(), self.placement.workers, read, fed=fed)
