"""The processes of a parameter server training, and what they leave behind; for `ps_chaos.py`."""

from __future__ import annotations

import contextlib
import glob
import os
import time


def send(pid: int, number: int) -> None:
    """Sends a signal, if the process is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def actors(title: str) -> list[int]:
    """Returns the processes below this one with a title that begins so."""
    found, left = [], [os.getpid()]
    while left:
        pid = left.pop()
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as command:
            if command.read().startswith(title):
                found.append(pid)
        left += children(pid)
    return found


def named(pid: int) -> str:
    """Returns the name of a process, "" if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as name:
        return name.read().strip()
    return ""


def semaphores(nodes: list[int]) -> list[str]:
    """Returns the semaphores, two for each buffer, that nodes have in shared memory."""
    return [path for pid in nodes for path in glob.glob(f"/dev/shm/sem.???{pid}-*")]


def count_left(pids: list[int]) -> int:
    """Returns how many of these processes, and of Ray's own below this one, are there after a few seconds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (left := [*filter(is_alive, pids), *ray_children()]):
        time.sleep(0.2)
    return len(set(left))


def is_alive(pid: int) -> bool:
    """Returns whether a process is there and is no zombie."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def ray_children() -> list[int]:
    """Returns the children of this process that still run."""
    return [pid for pid in children(os.getpid()) if is_alive(pid)]


def children(pid: int) -> list[int]:
    """Returns the children of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found
