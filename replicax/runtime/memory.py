"""Memory that large buffers leave: kept by this process for the next ones.

XLA takes memory for the results and temporaries of a program at each call and frees it afterwards. glibc gives what is
larger than 32 MiB back to the system at once, and the next call gets new pages, which the system has to find, fill with
zeros and map, 4 KiB at a time: of an all-reduce of 64 MiB that is 40 % of the time. Here glibc is set to keep such
memory (`M_MMAP_THRESHOLD`, `M_TRIM_THRESHOLD`), and to serve all threads from one heap (`M_ARENA_MAX`), since the other
heaps cannot hold a buffer of more than 64 MiB. The price: what the process needed at its peak, up to 1 GiB, stays with
it. Where programs come and go, and where a checkpoint was read, small blocks that live split the heap, and the peak
rises with each of them: `give_freed_memory_back` is for their end.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

from replicax.checks.environment_names import KEEP_MEMORY

_KEPT_BYTES = 2**30
_USERS_SETTINGS = "MALLOC_"  # as glibc's variables begin: MALLOC_ARENA_MAX, MALLOC_TRIM_THRESHOLD_, ...
_TUNABLES, _OF_MALLOC = "GLIBC_TUNABLES", "glibc.malloc."
# The parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Lets this process keep up to 1 GiB of freed memory for the next buffers; returns whether glibc has agreed."""
    # Called before JAX starts its threads: those that have a heap of their own go on using it.
    tunes_malloc = _OF_MALLOC in environ.get(_TUNABLES, "") or any(n.startswith(_USERS_SETTINGS) for n in environ)
    if environ.get(KEEP_MEMORY, "").strip() == "0" or tunes_malloc or not _is_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {_MMAP_THRESHOLD: _KEPT_BYTES, _TRIM_THRESHOLD: _KEPT_BYTES, _ARENA_MAX: 1}
    return all(mallopt(parameter, value) == 1 for parameter, value in settings.items())


def give_freed_memory_back() -> None:
    """Gives the system all pages of freed memory back, once; this process goes on keeping what it frees later."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def _is_glibc() -> bool:
    if not hasattr(os, "confstr"):  # Windows
        return False
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") is not None
    except (OSError, ValueError):  # Another C library.
        return False
