"""How values cross between the two halves of a step: from home to the compute devices, and back.

Devices of the host share its memory. Between them nothing is copied: a device is given an array whose buffer is that of
another device's array. JAX keeps such a buffer until all of these arrays are gone, and does not overwrite it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from replicax.compat.jax import array_of_parts, is_random_key

#: A value, or the parts of a sum in the order of the replicas; None for a part that comes by itself.
Parts: TypeAlias = jax.Array | list[jax.Array | None]


class Crossing:
    """The way between home and the compute devices."""

    def __init__(self, home: SingleDeviceSharding, compute: NamedSharding):
        self._home_sharding, self._compute = home, compute
        (self._home,) = home.device_set
        devices: set[jax.Device] = home.device_set | compute.device_set
        # Whether one of the devices reads what is another one's without a copy.
        self.in_place = len(devices) > 1 and all(device.platform == "cpu" for device in devices)
        self._devices = list(compute.mesh.devices.flat)
        # The position of home among the compute devices; None if it is none of them.
        self.own = self._devices.index(self._home) if self._home in compute.device_set else None

    def at_work(self, value: jax.Array) -> jax.Array:
        """Returns an argument where the worker can use it: a variable's value that has been read lies at home."""
        if isinstance(value, jax.Array) and value.committed and value.sharding == self._home_sharding:
            value = jax.device_put(value, self._compute)
        return value

    def on_all_devices(self, values: list[jax.Array]) -> list[jax.Array]:
        """Returns variables' values on all compute devices; on the one that has them already, they are not copied."""
        if self.in_place:
            return [_shared(value, self._compute, self._devices, self.own) for value in values]
        rows = [values if device == self._home else jax.device_put(values, device) for device in self._devices]
        return [
            jax.make_array_from_single_device_arrays(value.shape, self._compute, list(copies), dtype=value.dtype)
            for value, copies in zip(values, zip(*rows, strict=True), strict=True)
        ]

    def at_home(self, sent: jax.Array) -> jax.Array:
        """Returns a copy of a value that all compute devices have: the one at home if there is one."""
        if self.own == 0:
            return sent.addressable_data(0)
        if self.own is not None:
            shard: jax.Array = next(shard.data for shard in sent.addressable_shards if shard.device == self._home)
            return shard
        at_home: jax.Array = jax.device_put(sent.addressable_data(0), self._home_sharding)
        return at_home

    def arrived(self, sent: Sequence[jax.Array], parted: Collection[int]) -> list[Parts]:
        """Returns at home what the compute devices send."""
        # Of the values numbered in `parted` each device has a part, and home joins them; all devices have the others.
        parts = {i: [sent[i].addressable_data(k) for k in range(len(self._devices))] for i in parted}
        away = [part for each in parts.values() for k, part in enumerate(each) if k != self.own]
        brought = iter(self._brought(away))
        at_home: dict[int, Parts] = {
            i: [part if k == self.own else next(brought) for k, part in enumerate(each)] for i, each in parts.items()
        }
        return [at_home[i] if i in at_home else self.at_home(value) for i, value in enumerate(sent)]

    def _brought(self, parts: list[jax.Array]) -> list[jax.Array]:
        """Returns parts of other devices at home."""
        if not self.in_place:
            brought: list[jax.Array] = jax.device_put(parts, self._home_sharding)
            return brought
        return [_shared(part, self._home_sharding, [self._home]) for part in parts]

    def take_own(self, parts: Parts) -> jax.Array:
        """Returns the part of home itself, and leaves None in its place."""
        assert isinstance(parts, list)
        assert self.own is not None
        own, parts[self.own] = parts[self.own], None
        assert own is not None
        return own


def _shared(value: jax.Array, sharding: Sharding, devices: Sequence[jax.Device], own: int | None = None) -> jax.Array:
    """Returns a value as an array of other devices, which read it where it is; at position `own` is its own device."""
    if is_random_key(value):
        copies: jax.Array = jax.device_put(value, sharding)
        return copies
    memory = np.asarray(value)
    return array_of_parts(value.aval, sharding, devices, [value if k == own else memory for k in range(len(devices))])


def stacked(parts: Parts) -> jax.Array:
    """Returns the parts of the devices, one after the other, in a program."""
    return parts if not isinstance(parts, list) else jnp.concatenate([part for part in parts if part is not None])


def summed(parts: Parts, own: jax.Array | None) -> jax.Array:
    """Returns the sum of what the devices have sent, in a program; `own` is the part that comes by itself."""
    if not isinstance(parts, list):
        return parts
    filled = [part for each in parts if (part := own if each is None else each) is not None]
    return functools.reduce(lambda total, part: total + part, filled)
