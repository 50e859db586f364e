"""Where values live: on all devices of a strategy, or on the first few for a step whose batch does not divide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from replicax.compat import strongly_typed
from replicax.program.replica import variable_is_stacked
from replicax.runtime.mesh import mirrored_sharding, replica_mesh, stacked_sharding
from replicax.values import is_per_replica


class Placement:
    """Places values on the devices of a strategy.

    A *mirrored* value is whole on every device. A *stacked* one has a row for each replica, on its device. A step may
    run on the first few replicas only: on a sub-mesh.

    Args:
        devices: The devices, in replica order.
    """

    def __init__(self, devices: Sequence[jax.Device]):
        self.devices = tuple(devices)
        self.replicas = len(self.devices)
        self._meshes: dict[int, jax.sharding.Mesh] = {}

    def mesh_for(self, replicas: int) -> jax.sharding.Mesh:
        """Returns the mesh of the first `replicas` devices."""
        if replicas not in self._meshes:
            self._meshes[replicas] = replica_mesh(self.devices[:replicas])
        return self._meshes[replicas]

    def sharding(self, stacked: bool, replicas: int | None = None) -> jax.sharding.NamedSharding:
        """Returns where a mirrored (or stacked) value lives in a step on `replicas` replicas (default: all)."""
        mesh = self.mesh_for(replicas or self.replicas)
        return stacked_sharding(mesh) if stacked else mirrored_sharding(mesh)

    def place(self, value: Any, stacked: bool = False, replicas: int | None = None) -> jax.Array:
        """Returns a copy of `value` on the devices; it shares no buffer with `value`."""
        if not isinstance(value, jax.Array):
            value = strongly_typed(value)
        return jax.device_put(value, self.sharding(stacked, replicas), may_alias=False)

    def assembled(self, rows: Sequence[jax.Array]) -> jax.Array:
        """Returns the stacked value of `rows`, arrays of shape `(1, ...)`, each on its replica's device."""
        shape = (len(rows), *rows[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self.sharding(stacked=True), list(rows))

    def load(self, variable: Any, replicas: int) -> jax.Array:
        """Returns a variable's value as a step on `replicas` replicas needs it.

        On a sub-mesh a mirrored variable is a view of the copies of the first devices. A stacked one comes whole, to
        each device: also the components of replicas that sit the step out count when it is read.
        """
        stacked = variable_is_stacked(variable)
        value = variable._value
        if value.sharding != self.sharding(stacked):
            value = self.place(value, stacked)
        if replicas == self.replicas:
            return value
        return self.place(value, replicas=replicas) if stacked else self._first(value, replicas)

    def store(self, variable: Any, value: Any) -> None:
        """Writes a value that a step on any number of replicas has computed to all copies of a variable."""
        variable._value = self.place(value, variable_is_stacked(variable))

    def shrunk(self, array: Any, replicas: int) -> Any:
        """Returns an argument that is mirrored on all devices as a step on `replicas` replicas needs it."""
        if isinstance(array, jax.Array) and array.sharding == self.sharding(stacked=False):
            return self._first(array, replicas)
        return array

    def _first(self, mirrored: jax.Array, replicas: int) -> jax.Array:
        shards = {shard.device: shard.data for shard in mirrored.addressable_shards}
        held = [shards[device] for device in self.devices[:replicas]]
        sharding = self.sharding(stacked=False, replicas=replicas)
        return jax.make_array_from_single_device_arrays(mirrored.shape, sharding, held)

    def rejoined(self, nest: Any, replicas: int) -> Any:
        """Moves the mirrored results of a step on `replicas` replicas to all devices."""
        if replicas == self.replicas:
            return nest
        return jax.tree_util.tree_map(self._rejoined, nest, is_leaf=is_per_replica)

    def _rejoined(self, leaf: Any) -> Any:
        if is_per_replica(leaf) or not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
            return leaf
        return self.place(leaf) if leaf.sharding.is_fully_replicated else leaf
