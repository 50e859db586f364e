"""Processes that carry a mark in their environment: what a soak or a benchmark has started, and what that started."""

from __future__ import annotations

from pathlib import Path


def marked(mark: str) -> dict[int, str]:
    """Returns the names, by id, of the processes that run with `mark`, such as `"NAME=value"`, in their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "comm").read_text().strip()
        except OSError:  # It has ended meanwhile, or belongs to somebody else.
            continue
    return found
