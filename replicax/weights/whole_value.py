"""The value of a sharded variable on the host, to be written to a file: one at a time, and none stays there."""

from __future__ import annotations

import jax
import numpy as np

from replicax.contracts.variable_access import is_variable


def on_host(value: object) -> object:
    """Returns the values of a variable or an array that lies on several devices as a NumPy array; else what it got."""
    array = value.value if is_variable(value) else value
    if not isinstance(array, jax.Array) or len(array.sharding.device_set) == 1 or not array.is_fully_addressable:
        return value
    values = np.empty(array.shape, array.dtype)
    seen: set[object] = set()
    for shard in array.addressable_shards:
        bounds = tuple(part.indices(length) for part, length in zip(shard.index, array.shape, strict=True))
        if bounds not in seen:
            seen.add(bounds)
            data = shard.data
            # JAX keeps a copy on the host for as long as the array lives that is asked for it: of a model that is
            # saved, all of it. So another array is asked, which goes at once.
            once = jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])
            values[shard.index] = np.asarray(once)
    return values
