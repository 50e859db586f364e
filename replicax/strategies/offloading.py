"""Optimizer state in the memory of the host: it is on the devices while a step updates it, and not between steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax

from replicax.contracts.variable_access import VariableLike, shape_of
from replicax.errors import ArgumentError, DeviceError
from replicax.layouts.slots import maker_is_optimizer
from replicax.runtime.devices import device_name
from replicax.runtime.transfer import HOST_MEMORY

_AVERAGE = "_average"  # Keras's name for the moving average of a parameter, which becomes the parameter after `fit`.


def offloaded(
    offload_optimizer: bool, devices: Sequence[jax.Device], min_size: int
) -> Callable[[VariableLike], bool] | None:
    """Returns what tells which variables live in the host's memory between steps; None if none do."""
    if not isinstance(offload_optimizer, bool):
        raise ArgumentError(f"`offload_optimizer` must be True or False, got {offload_optimizer!r:.100}.")
    if not offload_optimizer:
        return None
    for device in devices:
        kinds = [memory.kind for memory in device.addressable_memories()] if _is_here(device) else [HOST_MEMORY]
        if HOST_MEMORY not in kinds:
            raise DeviceError(
                f"offload_optimizer=True keeps optimizer state in memory of the kind {HOST_MEMORY!r}, which JAX does "
                f"not have beside {device_name(device)}: it has {', '.join(map(repr, kinds))}. Leave it out."
            )

    def lives_on_host(variable: VariableLike) -> bool:
        is_large = math.prod(shape_of(variable)) >= min_size  # Moving a smaller one would save nothing.
        return is_large and maker_is_optimizer(variable) and not variable.name.endswith(_AVERAGE)

    return lives_on_host


def _is_here(device: jax.Device) -> bool:
    return bool(device.process_index == jax.process_index())
