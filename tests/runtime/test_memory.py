from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from replicax.runtime import memory
from replicax.runtime.memory import give_freed_memory_back, keep_freed_memory

# A buffer of 64 MiB is taken and freed in a thread, as XLA's programs do, over and over.
_PAGES = """
import resource, sys, threading
from replicax.runtime.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use(counts):
    for _ in range(4):
        before = faults()
        b"1" * 2**26
        counts.append(faults() - before)

counts = []
thread = threading.Thread(target=use, args=(counts,))
thread.start()
thread.join()
print(min(counts[1:]))
"""


def _new_pages(how: str) -> int:
    command = [sys.executable, "-c", _PAGES, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_a_large_buffer_gets_the_pages_of_the_one_before():
    kept, not_kept = _new_pages("keep"), _new_pages("not")
    assert kept < 100 <= not_kept


# Of freed blocks, each is beside one that lives, so that none is at the end of the heap.
_RESIDENT = """
import resource
from pathlib import Path
from replicax.runtime.memory import give_freed_memory_back, keep_freed_memory

assert keep_freed_memory()

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

before = resident()
blocks = [b"1" * size for _ in range(256) for size in (2**18, 2**10)]
del blocks[::2]
kept = resident() - before
give_freed_memory_back()
print(kept, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_between_blocks_that_live_is_given_back():
    command = [sys.executable, "-c", _RESIDENT]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    kept_mib, left_mib = map(float, printed.split())
    assert left_mib < 16 < 48 < kept_mib


def test_another_c_library_is_not_asked_to_give_back(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", pytest.fail)
    monkeypatch.setattr(memory.os, "confstr", lambda name: None)
    give_freed_memory_back()


@pytest.mark.parametrize(
    "environ",
    [
        {"REPLICAX_KEEP_MEMORY": "0"},
        {"MALLOC_ARENA_MAX": "2"},
        {"MALLOC_TRIM_THRESHOLD_": "1000"},
        {"GLIBC_TUNABLES": "glibc.rtld.nns=2:glibc.malloc.hugetlb=1"},
    ],
)
def test_settings_of_the_user_win(environ, monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", pytest.fail)
    assert not keep_freed_memory(environ)


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", pytest.fail)
    monkeypatch.setattr(memory.os, "confstr", lambda name: None)
    assert not keep_freed_memory({})
