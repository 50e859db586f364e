from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from replicax.runtime import memory
from replicax.runtime.memory import keep_freed_memory

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
