"""JAX's cache of compiled programs."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest
from jax._src.lru_cache import LRUCache

from replicax.compat.jax_cache import write_compilation_cache_from_every_process


def test_the_cache_is_written_by_a_function_whose_fourth_argument_is_the_backend():
    from jax._src.compiler import _cache_write

    written = getattr(_cache_write, "__wrapped__", _cache_write)
    names = written.__code__.co_varnames[: written.__code__.co_argcount]
    assert names[3] == "backend", f"JAX {jax.__version__}: {names}"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    from jax._src import compiler

    monkeypatch.setattr(compiler, "_cache_write", compiler._cache_write)
    monkeypatch.setattr(LRUCache, "put", LRUCache.put)
    write_compilation_cache_from_every_process.__wrapped__()
    return LRUCache(str(tmp_path), max_size=-1)


def test_a_program_is_found_and_no_other_file_stays(cache, tmp_path):
    cache.put("key", b"program")
    cache.put("key", b"another")
    assert cache.get("key") == b"program"
    assert [path.name for path in tmp_path.iterdir()] == ["key-cache"]


def test_a_process_that_is_killed_while_it_writes_leaves_no_half_of_a_program(cache, tmp_path, monkeypatch):
    write = Path.write_bytes

    def write_half(self, value):
        write(self, value[:3])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(KeyboardInterrupt):
        cache.put("key", b"program")
    monkeypatch.undo()
    assert cache.get("key") is None
    assert list(tmp_path.iterdir()) == []
