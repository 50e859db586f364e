"""Data and model parallelism together: four groups of devices share the rows, two devices in each the hidden units.

    python examples/dtensor_schemes/data_model.py

The model and its layouts are those of model_parallel.py. On this mesh "model" has two devices, and the batch is cut
over the other dimension, "batch". The sums of the model-parallel blocks stay inside a group. The gradients are summed
over the groups: each device's own half of the kernels only.
"""

from __future__ import annotations

import dataclasses

import model_parallel
from scheme import compare

from replicax.dtensor import UNSHARDED

SCHEME = dataclasses.replace(
    model_parallel.SCHEME,
    name="data and model parallel",
    mesh_dims={"batch": 4, "model": 2},
    batch_specs=[["batch", UNSHARDED], ["batch", UNSHARDED]],
)

if __name__ == "__main__":
    print(compare(SCHEME))
