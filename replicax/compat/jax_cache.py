"""JAX's cache of compiled programs on the disk, as several processes that may be killed write it."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jax._src import compilation_cache, compiler as jax_compiler, distributed as jax_distributed, lru_cache

_SUFFIX = "-cache"
_HERE = threading.local()


@contextlib.contextmanager
def without_compilation_cache() -> Iterator[None]:
    """Lets this thread compile, in the `with` block, without looking into JAX's compilation cache or writing it."""
    # Of a program from the cache XLA can make no copy for another device, and the cache does not know for how many
    # threads a program was compiled. Without the name: such a copy fails when it runs, with an error of XLA's.
    _ask_each_thread()
    _HERE.is_off = True
    try:
        yield
    finally:
        _HERE.is_off = False


@functools.cache
def _ask_each_thread() -> None:
    is_used = compilation_cache.is_cache_used

    @functools.wraps(is_used)
    def is_used_here(*args: Any) -> bool:
        return not getattr(_HERE, "is_off", False) and is_used(*args)

    compilation_cache.is_cache_used = is_used_here  # type: ignore[assignment]


@functools.cache
def write_compilation_cache_from_every_process() -> None:
    """Lets each CPU process write what it compiles into JAX's compilation cache, and each program at once."""
    # JAX leaves the writing to process 0. But the programs of CPU processes are kept under different names, so that
    # after a restart the others would not find theirs. Without the name: each process gets a folder for the cache of
    # its own.
    write = jax_compiler._cache_write

    @functools.wraps(write)
    def write_as_first(*args: Any, **kwargs: Any) -> None:
        # The backend is the fourth argument.
        if args[3].platform != "cpu":
            write(*args, **kwargs)
            return
        state = jax_distributed.global_state
        process_id, state.process_id = state.process_id, 0
        try:
            write(*args, **kwargs)
        finally:
            state.process_id = process_id

    jax_compiler._cache_write = write_as_first
    _write_at_once()


def _write_at_once() -> None:
    """Makes a program appear in the cache whole or not at all."""
    # JAX writes the file under its final name. If the process is killed meanwhile, half a program stays, which JAX
    # refuses with a warning in each later process, and never replaces. Without the name: users delete such files.
    put = lru_cache.LRUCache.put

    @functools.wraps(put)
    def put_at_once(self: lru_cache.LRUCache, key: str, value: bytes) -> None:
        folder = os.fspath(self.path)
        if self.eviction_enabled or not key or "://" in folder:  # JAX holds a lock; or it is not a disk.
            put(self, key, value)
            return
        path = Path(folder, f"{key}{_SUFFIX}")
        if path.exists():
            return
        unfinished = Path(folder, f".{os.getpid()}-{secrets.token_hex(4)}.unfinished")
        try:
            unfinished.write_bytes(value)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    lru_cache.LRUCache.put = put_at_once  # type: ignore[method-assign]
