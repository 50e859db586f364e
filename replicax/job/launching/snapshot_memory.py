"""The memory that the launcher keeps for snapshots of its job: it outlives the tasks of an attempt, not the launcher.

It is a folder in `/dev/shm`, which only this user can read; `checkpoint/snapshots.py` writes there. The launcher
deletes it at its end, or its guard if SIGKILL ends it. If both are killed, the next launcher does: a file that its
owner holds locked tells whether a folder is in use.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from replicax.checks.environment_names import SNAPSHOTS
from replicax.job.options import Options
from replicax.job.processes.reaper import Guard

_MEMORY = "/dev/shm"
_PREFIX, _LOCK = "replicax-snapshots-", "in-use"
_OFF = "0"  # as the value of `REPLICAX_SNAPSHOTS`, which may also name another folder


@contextlib.contextmanager
def memory_for_snapshots(options: Options, environment: Mapping[str, str], guard: Guard) -> Iterator[str]:
    """Yields a folder in memory if the job may start again as a whole; `""` if not, or if the system has none."""
    parent = environment.get(SNAPSHOTS) or _MEMORY
    wanted = bool(options.restarts) and not options.goes_on and not options.ps and parent != _OFF
    if not wanted or not os.access(parent, os.W_OK | os.X_OK):
        yield ""
        return
    _delete_left(Path(parent))
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    lock = os.open(Path(folder, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        guard.watch_folder(folder)
        _lock(lock)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        guard.forget_folder(folder)
        os.close(lock)


def _lock(file: int) -> bool:
    """Locks a file; returns whether nobody else holds it."""
    import fcntl  # Systems without it have no memory as folders.

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _delete_left(parent: Path) -> None:
    """Deletes the folders of launchers that were killed together with their guards."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # Another user's, or one that is being made or deleted.
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                if _lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
