"""How much memory Ray's object store may take."""

from __future__ import annotations

import os
import shutil

from replicax.compat.systems import memory_of_machine

# Far less than Ray's own default: gradients and batches pass through the store and do not stay.
_MOST, _LEAST = 2**30, 100 * 2**20  # Ray refuses less than 75 MiB.
_SHARE = 0.25


def object_store_memory(shared_memory: str = "/dev/shm") -> int:
    """Returns the bytes for the object store: a quarter of the memory, at most 1 GiB and what `shared_memory` has."""
    memory = memory_of_machine()
    wanted = min(int(memory * _SHARE), _MOST)
    if os.path.isdir(shared_memory):
        wanted = min(wanted, int(shutil.disk_usage(shared_memory).free * 0.9))
    return max(wanted, _LEAST)
