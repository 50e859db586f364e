"""Where values live: on all devices of a strategy, or on the first few for a step whose batch does not divide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from replicax.compat import strongly_typed
from replicax.program.frames import variable_is_stacked, variable_shape
from replicax.runtime.mesh import REPLICA_AXIS, mirrored_sharding, stacked_sharding
from replicax.values import is_per_replica


def whole(variable: Any) -> PartitionSpec:
    """The layout of a mirrored variable: every device holds all of it."""
    del variable
    return PartitionSpec()


class Placement:
    """Places values on the devices of a strategy.

    A *mirrored* value is whole on every device. A *stacked* one has a row for each replica, on its device. A step may
    run on the first few replicas only: on a sub-mesh.

    Args:
        devices: The devices, replicas first: shape `(replicas,)`, or `(replicas, ...)` where several devices make one.
        axis_names: Names of the dimensions; the first is `"replica"`.
        layout: Returns how a variable is cut over the mesh between steps.
    """

    def __init__(
        self,
        devices: Sequence[Any] | np.ndarray,
        axis_names: Sequence[str] = (REPLICA_AXIS,),
        layout: Callable[[Any], PartitionSpec] = whole,
    ):
        self._devices = np.array(devices, dtype=object)
        self._axis_names = tuple(axis_names)
        self._layout = layout
        self.replicas = len(self._devices)
        #: One device for each replica.
        self.devices: tuple[jax.Device, ...] = tuple(
            row.flat[0] if self._devices.ndim > 1 else row for row in self._devices
        )
        self._meshes: dict[int, Mesh] = {}

    def mesh_for(self, replicas: int) -> Mesh:
        """Returns the mesh of the first `replicas` replicas."""
        if replicas not in self._meshes:
            types = (AxisType.Auto,) * len(self._axis_names)
            self._meshes[replicas] = Mesh(self._devices[:replicas], self._axis_names, axis_types=types)
        return self._meshes[replicas]

    def sharding(self, stacked: bool, replicas: int | None = None) -> NamedSharding:
        """Returns where a mirrored (or stacked) value lives in a step on `replicas` replicas (default: all)."""
        mesh = self.mesh_for(replicas or self.replicas)
        return stacked_sharding(mesh) if stacked else mirrored_sharding(mesh)

    def variable_sharding(self, variable: Any) -> NamedSharding:
        """Returns where a variable's value lives between steps."""
        if variable_is_stacked(variable):
            return self.sharding(stacked=True)
        return NamedSharding(self.mesh_for(self.replicas), self._layout(variable))

    def program_sharding(self, variable: Any, replicas: int) -> NamedSharding:
        """Returns where a variable's value is at the beginning and end of a program on `replicas` replicas."""
        if replicas == self.replicas:
            return self.variable_sharding(variable)
        return self.sharding(stacked=False, replicas=replicas)

    def place(self, value: Any, stacked: bool = False, replicas: int | None = None) -> jax.Array:
        """Returns a copy of `value` on the devices; it shares no buffer with `value`."""
        return placed_copy(value, self.sharding(stacked, replicas))

    def assembled(self, rows: Sequence[jax.Array]) -> jax.Array:
        """Returns the stacked value of `rows`, arrays of shape `(1, ...)`, each on its replica's device."""
        if self._devices.ndim > 1:
            return self.place(np.concatenate(rows), stacked=True)
        shape = (len(rows), *rows[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self.sharding(stacked=True), list(rows))

    def load(self, variable: Any, replicas: int) -> jax.Array:
        """Returns a variable's value as a program on `replicas` replicas needs it.

        On a sub-mesh a mirrored variable is a view of the copies of the first devices. Any other comes whole, to each
        device: also the components of replicas that sit the step out count when it is read.
        """
        value, home = variable._value, self.variable_sharding(variable)
        if value.sharding != home:
            value = placed_copy(value, home)
        if replicas == self.replicas:
            return value
        return self._first(value, replicas) if home.is_fully_replicated else self.place(value, replicas=replicas)

    def initialize(self, variable: Any, value: Any) -> None:
        """Gives a variable a copy of `value`, which may be anybody's."""
        variable._value = placed_copy(value, self.variable_sharding(variable))

    def store(self, variable: Any, value: jax.Array) -> None:
        """Gives a variable a value that a program on any number of replicas has computed for it."""
        variable._value = jax.device_put(value, self.variable_sharding(variable))

    def shrunk(self, array: Any, replicas: int) -> Any:
        """Returns an argument that is mirrored on all devices as a program on `replicas` replicas needs it."""
        if isinstance(array, jax.Array) and array.sharding == self.sharding(stacked=False):
            return self._first(array, replicas)
        return array

    def _first(self, mirrored: jax.Array, replicas: int) -> jax.Array:
        shards = {shard.device: shard.data for shard in mirrored.addressable_shards}
        held = [shards[device] for device in self._devices[:replicas].flat]
        sharding = self.sharding(stacked=False, replicas=replicas)
        return jax.make_array_from_single_device_arrays(mirrored.shape, sharding, held)

    def rejoined(self, nest: Any, replicas: int) -> Any:
        """Moves the mirrored results of a program on `replicas` replicas to all devices."""
        if replicas == self.replicas:
            return nest
        return jax.tree_util.tree_map(self._rejoined, nest, is_leaf=is_per_replica)

    def _rejoined(self, leaf: Any) -> Any:
        if is_per_replica(leaf) or not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
            return leaf
        return self.place(leaf) if leaf.sharding.is_fully_replicated else leaf


def placed_copy(value: Any, sharding: NamedSharding) -> jax.Array:
    """Returns a copy of `value` with a sharding; it shares no buffer with `value`."""
    # `device_put` reuses the buffer of a device that has the value already, even with may_alias=False.
    value = jnp.copy(value) if isinstance(value, jax.Array) else strongly_typed(value)
    return jax.device_put(value, sharding)


def cut_if_large(variable: Any, min_size: int, parts: int) -> PartitionSpec:
    """Returns the layout that cuts a variable of at least `min_size` elements, and leaves others whole."""
    shape = variable_shape(variable)
    return largest_divisible_cut(shape, parts) if math.prod(shape) >= min_size else PartitionSpec()


def largest_divisible_cut(shape: Sequence[int], parts: int) -> PartitionSpec:
    """Returns the layout that cuts the longest dimension that `parts` divides; none if there is no such dimension.

    Example:
        >>> largest_divisible_cut((700, 512), 8)
        P(None, 'replica')
    """
    divisible = [(length, -i) for i, length in enumerate(shape) if length and length % parts == 0]
    if not divisible:
        return PartitionSpec()
    cut = -max(divisible)[1]
    return PartitionSpec(*(REPLICA_AXIS if i == cut else None for i in range(cut + 1)))
