"""Helpers to look at what arrives on the devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from replicax.runtime import replica_mesh
from replicax.values import is_per_replica


@pytest.fixture(scope="session")
def mesh_for():
    """The mesh of the first k devices, as a strategy gives it."""
    meshes = {}

    def get(count):
        if count not in meshes:
            meshes[count] = replica_mesh(jax.devices()[:count])
        return meshes[count]

    return get


@pytest.fixture(scope="session")
def rows_of():
    """All rows of one leaf of a step, in replica order."""

    def get(leaf):
        if not is_per_replica(leaf):
            return np.asarray(leaf)
        return np.concatenate([np.asarray(component) for component in leaf.values])

    return get
