"""The processes that the devices of a strategy's replicas belong to."""

from __future__ import annotations

import functools

import jax
import numpy as np


class ReplicaProcesses:
    """Says which replicas have devices in this process, and in which others.

    Args:
        devices: The devices, replicas first; several may make one replica, in one process or in several.
    """

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
        """Returns for how many replicas each process reads data, and which have devices there.

        Of the processes that have devices of a replica, the one that reads for the fewest reads for it. Those with
        devices in a process are told by the first id and the one after the last.
        """
        read = [0] * jax.process_count()
        held: list[list[int]] = [[] for _ in read]
        for replica, processes in enumerate(self._of):
            read[min(processes, key=lambda process: (read[process], process))] += 1
            for process in processes:
                held[process].append(replica)
        return tuple(read), tuple((min(ids), max(ids) + 1) if ids else (0, 0) for ids in held)
