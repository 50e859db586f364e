"""How a process leaves Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Stands for objects of Ray's that crash when they are taken down.
LEAVING = """
import ctypes, sys
from replicax.ray_cluster.ray_environment import import_ray, leave_unfinished
library = ctypes.CDLL(None)
library.on_exit(library.abort, None)
import_ray()
leave_unfinished()
print("its last words")
sys.exit(7)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs GNU's C library")
def test_a_process_that_leaves_ray_unfinished_ends_with_its_own_exit_code():
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (7, "its last words\n"), done.stderr
