"""What runs when a script has ended, and before the pools of threads are shut down."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from replicax.compat.interpreter import STARTS_THREADS_AT_END
from tests.compat.guards import needs

_SCRIPT = """
import concurrent.futures, threading
from replicax.compat.interpreter import call_when_script_ends
pool = concurrent.futures.ThreadPoolExecutor()
call_when_script_ends(lambda: print(pool.submit(lambda: "still works").result()))
threading.Thread(target=lambda: None).start()
print("the last line")
"""


def test_the_name_is_there():
    needs("replicax", "threading._register_atexit", lambda: threading._register_atexit)  # type: ignore[attr-defined]


@pytest.mark.skipif(not STARTS_THREADS_AT_END, reason="this version of Python starts no threads then")
def test_pools_still_work():
    ran = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split("\n") == ["the last line", "still works", ""]
