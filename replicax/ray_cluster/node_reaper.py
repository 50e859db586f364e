"""Ends what is left of a Ray node, whatever happened to the process that started it; then its folder goes too.

A process of its own, started by its path, that imports nothing of replicax. Its standard input ends when its starter
does. Many processes of a node are daemons that do not notice the end of their parent, and a stopped process notices
nothing. Here all of them are known, with those that they started, by a variable in their environment, or by where their
output goes, in case they have written their title over the variable (Linux).
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

VARIABLE = "REPLICAX_RAY_FOLDER"
_SECONDS_BETWEEN_LOOKS = 0.5  # at the process that it reaps for, without end
_SECONDS_TO_END = 20.0  # for Ray's processes, before it kills them


def main(folder: str) -> None:
    """Waits for the starter's end, and tidies up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    starter, rulers = os.getppid(), raylets(marked(folder))
    # A process that the starter forked may hold the pipe open after its end.
    while not select.select([sys.stdin], [], [], _SECONDS_BETWEEN_LOOKS)[0] and os.getppid() == starter:
        rulers = rulers or raylets(marked(folder))
    deadline = time.monotonic() + _SECONDS_TO_END
    while (left := marked(folder)) and time.monotonic() < deadline:
        rulers |= raylets(left)
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)
    # The semaphores of mutable objects, named after their raylet: Ray leaves them if an actor does not end by itself.
    for semaphore in [path for ruler in rulers for path in Path("/dev/shm").glob(f"sem.???{ruler}-*")]:
        semaphore.unlink(missing_ok=True)


def raylets(processes: list[int]) -> set[int]:
    """Returns which of a node's processes are raylets."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip() == "raylet":
                found.add(process)
    return found


def marked(folder: str) -> list[int]:
    """Returns the numbers of the processes that belong to the node with this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has just ended, or is somebody else's.
            if _has_variable(path, folder) or _writes_to(path, folder):
                found.append(int(path.name))
    return found


def _has_variable(process: Path, folder: str) -> bool:
    return f"{VARIABLE}={folder}".encode() in (process / "environ").read_bytes().split(b"\0")


def _writes_to(process: Path, folder: str) -> bool:
    """Whether its output goes to the folder. A coordinator that is connected has a log there, but no output."""
    for link in (process / "fd").iterdir():
        target = os.readlink(link).removesuffix(" (deleted)")
        if target.startswith(folder + "/") and target.endswith((".out", ".err")):
            return True
    return False


if __name__ == "__main__":
    main(sys.argv[1])
