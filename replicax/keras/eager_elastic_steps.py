"""Steps that run operation by operation where workers come and go: each counts on all workers, or on none."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from replicax.cluster.signing import pickled, unpickled
from replicax.contracts.variable_access import array_of
from replicax.contracts.worlds import Worlds
from replicax.keras.steps import KerasStep
from replicax.program.storing import store_values
from replicax.runtime.transfer import host_copy, put
from replicax.typing import PyTree

_OUTPUTS = "the outputs of a step"


def eager_in_world(worlds: Worlds, step: KerasStep, data: PyTree, place: Callable[[], None]) -> PyTree:
    """Makes a step and stores its values, or those of a worker that has ended it; returns the whole outputs."""

    def run() -> tuple[PyTree, list[jax.Array]]:
        place()
        homes = {id(variable): array_of(variable).sharding for variable in step.variables}
        outputs, changed = step.computed(data)
        # Operations leave results where they like, and a value elsewhere would count as one to be agreed on.
        new = {id(variable): put(value, homes[id(variable)]) for variable, value in changed}
        values = [new.get(id(variable), array_of(variable)) for variable in step.variables]
        whole = jax.tree.map(_whole, outputs)
        jax.block_until_ready(values)
        return whole, values

    def outcome(result: tuple[PyTree, list[jax.Array]]) -> list[np.ndarray]:
        outputs, values = result
        told = pickled(_OUTPUTS, jax.tree.map(np.asarray, outputs))
        return [np.frombuffer(told, np.uint8), *map(host_copy, values)]

    def adopted(arrays: list[np.ndarray]) -> tuple[PyTree, list[jax.Array]]:
        place()
        homes = [array_of(variable).sharding for variable in step.variables]
        values = [put(value, home) for value, home in zip(arrays[1:], homes, strict=True)]
        return jax.tree.map(jax.numpy.asarray, unpickled(_OUTPUTS, arrays[0].tobytes())), values

    outputs, values = worlds.executed(run, outcome, adopted)
    store_values(step.variables, values)
    return outputs


def _whole(leaf: PyTree) -> PyTree:
    """Returns all rows of an output as an array of this process."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return leaf
    if isinstance(leaf.sharding, NamedSharding) and not leaf.is_fully_replicated:
        everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        leaf = put(leaf, everywhere)
    return jax.numpy.asarray(host_copy(leaf))
