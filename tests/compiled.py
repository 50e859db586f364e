"""What XLA has compiled for one test, the others of the session need not compile again.

Each test makes functions anew, so that JAX's caches, which go by the function, do not find the programs of another test
even where they are equal; its persistent cache goes by the program. Subprocesses of a test have no part in it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import jax
from jax._src.lru_cache import LRUCache

_FOLDER = "REPLICAX_TESTS_COMPILED"  # pytest-xdist's workers inherit it from the process that starts them.
_SUFFIX = "-cache"


def share_between_tests() -> None:
    """Lets JAX keep all that it compiles in a folder that is gone with the process that has made it."""
    if _FOLDER not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="replicax-tests-")
        os.environ[_FOLDER] = folder.name
        _kept.append(folder)
    LRUCache.put = _put
    jax.config.update("jax_compilation_cache_dir", os.environ[_FOLDER])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_enable_compilation_cache", True)


_kept: list[tempfile.TemporaryDirectory[str]] = []  # Until this process ends.


def _put(self: LRUCache, key: str, value: bytes) -> None:
    """Writes an entry at once: JAX's own way lets other threads and processes read a half of it."""
    path = Path(str(self.path), key + _SUFFIX)
    if path.exists():
        return
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(value)
    os.replace(file.name, path)
