"""The devices of a strategy's replicas: values on all of them, or on the first few for a step on fewer replicas.

A *mirrored* value is replicated over all devices. A *stacked* one has a row for each replica, on its device. A step may
run on the first few replicas only: on a sub-mesh.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

import replicax.runtime.activity as activity
from replicax.contracts.placement import Placement
from replicax.program.results import marked_like
from replicax.runtime.mesh import REPLICA_AXIS, mirrored_sharding, stacked_sharding
from replicax.runtime.transfer import from_chief, placed_copy, put, spans_processes
from replicax.typing import Leaf, PyTree
from replicax.values import is_per_replica


class ReplicaDevices(Placement):
    """The devices of the replicas, the meshes over them, and how values move from one to the other."""

    def __init__(
        self,
        devices: Sequence[jax.Device] | np.ndarray,
        axis_names: Sequence[str] = (REPLICA_AXIS,),
        workers: Sequence[str] = (),
    ):
        self._worker_names = tuple(workers)
        # Replicas first: shape `(replicas,)`, or `(replicas, ...)` where several devices make one, in one process or in
        # several.
        self._devices = np.array(devices, dtype=object)
        self._axis_names = tuple(axis_names)
        self.replicas = len(self._devices)
        #: One device for each replica.
        self.devices: tuple[jax.Device, ...] = tuple(
            row.flat[0] if self._devices.ndim > 1 else row for row in self._devices
        )
        #: The processes that the devices belong to.
        self.processes = ReplicaProcesses(self._devices)
        self._meshes: dict[int, Mesh] = {}
        #: Whether some of the devices belong to other processes.
        self.spans_processes = spans_processes(self.sharding(stacked=False))

    @property
    def is_chief(self) -> bool:
        return jax.process_index() == 0

    @property
    def workers(self) -> tuple[str, ...]:
        return self._worker_names or tuple(f"process {process}" for process in range(jax.process_count()))

    def mesh_for(self, replicas: int) -> Mesh:
        if replicas not in self._meshes:
            types = (AxisType.Auto,) * len(self._axis_names)
            self._meshes[replicas] = Mesh(self._devices[:replicas], self._axis_names, axis_types=types)
        return self._meshes[replicas]

    def sharding(self, stacked: bool, replicas: int | None = None) -> NamedSharding:
        mesh = self.mesh_for(replicas or self.replicas)
        return stacked_sharding(mesh) if stacked else mirrored_sharding(mesh)

    def place(self, value: jax.typing.ArrayLike, stacked: bool = False, replicas: int | None = None) -> jax.Array:
        return placed_copy(value, self.sharding(stacked, replicas))

    def assembled(self, rows: Sequence[jax.Array]) -> jax.Array:
        """Returns the stacked value of this process's `rows`, arrays of shape `(1, ...)` on their replicas' devices."""
        if self._devices.ndim > 1:
            return self.place(np.concatenate(rows), stacked=True)
        shape = (self.replicas, *rows[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self.sharding(stacked=True), list(rows))

    def spread(self, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
        if not self.spans_processes:
            return values
        with activity.phase(activity.WAIT, "results of a partial batch"):
            return [self.place(value) for value in from_chief(values)]

    def takes_part(self, replicas: int) -> bool:
        return bool(self.sharding(stacked=False, replicas=replicas).addressable_devices)

    def result_sharding(self, replicas: int) -> NamedSharding | None:
        # Replicated over all devices. Of a sub-mesh, process 0 sends them to processes that have no part in it.
        return self.sharding(stacked=False, replicas=replicas) if self.spans_processes else None

    def shrunk(self, array: jax.Array, replicas: int) -> jax.Array:
        if isinstance(array, jax.Array) and array.sharding.device_set == self.sharding(stacked=False).device_set:
            return self._shrunk_value(array, replicas)
        return array

    def _shrunk_value(self, value: jax.Array, replicas: int) -> jax.Array:
        if not value.sharding.is_fully_replicated and not self.spans_processes:
            return self.place(value, replicas=replicas)
        # Between processes there is no way but over all devices: only they can run a program together.
        return self._first(put(value, self.sharding(stacked=False)), replicas)

    def _first(self, mirrored: jax.Array, replicas: int) -> jax.Array:
        shards = {shard.device: shard.data for shard in mirrored.addressable_shards}
        held = [shards[device] for device in self._devices[:replicas].flat if device in shards]
        sharding = self.sharding(stacked=False, replicas=replicas)
        return jax.make_array_from_single_device_arrays(mirrored.shape, sharding, held, dtype=mirrored.dtype)

    def rejoined(self, tree: PyTree, replicas: int) -> PyTree:
        if replicas == self.replicas:
            return tree
        return jax.tree_util.tree_map(self._rejoined, tree, is_leaf=is_per_replica)

    def mirrored(self, value: Leaf, replicas: int) -> Leaf:
        """Returns a result of `replicas` replicas as every process can read it; in one process it is left as it is."""
        if not self.spans_processes or not isinstance(value, jax.Array):
            return value
        if isinstance(value, jax.core.Tracer):
            return jax.lax.with_sharding_constraint(value, self.sharding(stacked=False, replicas=replicas))
        return value if value.is_fully_addressable else put(value, self.sharding(stacked=False))

    def _rejoined(self, leaf: Leaf) -> Leaf:
        if is_per_replica(leaf) or not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
            return leaf
        return marked_like(self.place(leaf), leaf) if leaf.sharding.is_fully_replicated else leaf


# The processes that the devices of a strategy's replicas belong to.


class ReplicaProcesses:
    """Says which replicas have devices in this process, and in which others."""

    def __init__(self, devices: np.ndarray):
        self._rows = [list(row.flat) for row in devices.reshape(len(devices), -1)]
        self._several_make_one = devices.ndim > 1
        self._of = [{device.process_index for device in row} for row in self._rows]

    @functools.cached_property
    def local(self) -> tuple[int, ...]:
        """Ids of the replicas that have devices in this process, if some have others elsewhere too."""
        own = jax.process_index()
        return tuple(i for i, found in enumerate(self._of) if own in found)

    @functools.cached_property
    def led(self) -> tuple[int, ...]:
        """Ids of the replicas whose first device belongs to this process."""
        own = jax.process_index()
        return tuple(i for i, row in enumerate(self._rows) if row[0].process_index == own)

    @property
    def may_share(self) -> bool:
        """Whether a replica may have devices in several processes."""
        return self._several_make_one and len(set().union(*self._of)) > 1

    def device_here(self, replica: int) -> jax.Device:
        """Returns the first device of a replica that belongs to this process."""
        own = jax.process_index()
        found: jax.Device = next(device for device in self._rows[replica] if device.process_index == own)
        return found

    def readers_and_fed(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """Returns for how many replicas each process reads, and the first and the end of those with devices there."""
        read = [0] * jax.process_count()
        held: list[list[int]] = [[] for _ in read]
        for replica, processes in enumerate(self._of):
            # Of the processes that have devices of a replica, the one that reads for the fewest reads for it.
            read[min(processes, key=lambda process: (read[process], process))] += 1
            for process in processes:
                held[process].append(replica)
        return tuple(read), tuple((min(ids), max(ids) + 1) if ids else (0, 0) for ids in held)
