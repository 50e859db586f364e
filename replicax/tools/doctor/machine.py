"""This machine: its clock, and the disk that compiled programs are kept on."""

from __future__ import annotations

import datetime
import os
import shutil
import tempfile
import time
from pathlib import Path

from replicax.cluster.environment import Environ
from replicax.job.processes.task import cache_folder
from replicax.tools.doctor.findings import Finding, fail, ok, warn

_SECONDS_APART = 2.0  # Some file systems count in steps of two seconds.
_LEAST_FREE = 2**30
_EARLIEST = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC).timestamp()


def check_clock(folder: Path, now: float | None = None) -> Finding:
    """Checks the clock against that of the file system, which is another machine's where the folder is shared."""
    cure = "Let the machines keep their time (chrony, ntpd): the order of checkpoints and logs is read off it."
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".replicax-doctor-") as file:
            file.write(b"x")
            file.flush()
            apart = (time.time() if now is None else now) - os.fstat(file.fileno()).st_mtime
    except OSError as error:
        return warn("clock", f"not compared: nothing can be written to {folder} ({error.strerror})", "")
    zone = time.strftime("%Z")
    if (time.time() if now is None else now) < _EARLIEST:
        return fail("clock", "it stands before 2025", cure, seconds_from_file_system=apart)
    if abs(apart) > _SECONDS_APART:
        return warn("clock", f"{apart:+.1f} s from that of the file system at {folder}", cure,
                    seconds_from_file_system=apart)  # fmt: skip
    return ok("clock", f"agrees with the file system's ({folder}), time zone {zone}", seconds_from_file_system=apart)


def check_cache(environ: Environ) -> Finding:
    """Checks that compiled programs can be kept, so that a restart compiles nothing."""
    folder = Path(environ.get("JAX_COMPILATION_CACHE_DIR") or cache_folder(environ))
    if "://" in str(environ.get("JAX_COMPILATION_CACHE_DIR", "")):
        return ok("compilation cache", f"{environ['JAX_COMPILATION_CACHE_DIR']}: not on a disk, not looked at")
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    details = {"folder": str(folder)}
    cure = "Set JAX_COMPILATION_CACHE_DIR to a folder that can be written, with a few GiB free."
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return warn("compilation cache", f"nothing can be written to {folder}", cure, **details)
    free = shutil.disk_usage(there).free
    text = f"{folder}, {free / 2**30:.1f} GiB free"
    if free < _LEAST_FREE:
        return warn("compilation cache", text, cure, free_bytes=free, **details)
    return ok("compilation cache", text, free_bytes=free, **details)
