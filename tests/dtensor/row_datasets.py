"""Datasets whose elements are numbers."""

import numpy as np

from replicax.dtensor import UNSHARDED, DTensorDataset, Layout

ROWS = np.arange(12, dtype=np.int32)


def of_rows(source, mesh, size=4, batch_dim="x", **options):
    """A dataset over a mesh of x=2, y=3."""
    layout = Layout([batch_dim or UNSHARDED], mesh)
    return DTensorDataset(source, mesh=mesh, layouts=layout, global_batch_size=size, batch_dim=batch_dim, **options)


def numbers(dataset):
    return [batch.tolist() for batch in dataset]
