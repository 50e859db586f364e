"""Kills the processes that the launcher leaves behind if SIGKILL ends it.

It is a separate process, started by its path. It reads from a pipe which process groups exist (`+123`) and which have
ended (`-123`), and which folders are temporary (`+/path`, `-/path`). The pipe ends with the launcher, however that
ends; then this process kills the groups that are left and deletes the folders. The workers themselves die with the
launcher (`child.py`); this is for the processes that they started. It leaves its parent, since Ray ends the children of
an actor with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable


def main(lines: Iterable[str]) -> None:
    """Reads the launcher's messages to their end, kills the groups that are left, and deletes the folders."""
    left: set[str] = set()
    for line in lines:
        sign, what = line[0], line[1:].rstrip("\n")
        left.add(what) if sign == "+" else left.discard(what)
    folders = {what for what in left if what.startswith("/")}
    for group in left - folders:
        with contextlib.suppress(OSError):  # It has ended already.
            os.killpg(int(group), signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    main(sys.stdin)
