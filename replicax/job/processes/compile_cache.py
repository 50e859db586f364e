"""The folder of compiled programs stays within a size."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: Bytes; what a large model's programs take on a GPU is some 100 MiB.
MOST_BYTES = 4 * 2**30
_LEFT_OVER = 0.75  # of that, so that not each start has to delete something


def keep_within(folder: Path, most_bytes: int = MOST_BYTES) -> int:
    """Deletes the programs unused for the longest time if a folder has become too large; returns how many files."""
    files: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # Another job has deleted it.
                if entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    # Systems note the time of reading at least once a day, if at all.
                    files.append((max(found.st_mtime, found.st_atime), found.st_size, entry.path))
    total, deleted = sum(size for _, size, _ in files), 0
    if total <= most_bytes:
        return 0
    for _, size, path in sorted(files):
        if total <= _LEFT_OVER * most_bytes:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)  # Another job that looks for it compiles it again.
            deleted += 1
        total -= size
    return deleted
