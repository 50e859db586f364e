"""The script of a worker behind a cable: it enters the worker's network namespace and becomes the user's script.

It is started by its path, before anything of replicax or JAX is imported: threads keep the network in which they begin.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys

_CLONE_NEWNET = 0x40000000


def main(prefix: str, script: str, *arguments: str) -> None:
    """Runs a script in the network of this worker."""
    with open(f"/run/netns/{prefix}-{os.environ['REPLICAX_PROCESS_ID']}", encoding="utf-8") as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace.name}")
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
