"""Saving: a file is there whole, or not at all."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

_FILES = (".keras", ".h5")


def write_atomically(path: Any, write: Callable[[Any], Any]) -> Any:
    """Calls `write` with a name beside `path` and then gives the file its name, replacing an older one.

    If writing fails, what was at `path` before is still there, and nothing else is left. Folders and addresses such as
    `gs://...` are written to directly: they cannot be replaced in one step.
    """
    if not str(path).endswith(_FILES) or "://" in str(path):
        return write(path)
    target = pathlib.Path(path)
    temporary = target.with_name(f".saving-{os.getpid()}-{target.name}")
    try:
        result = write(str(temporary))
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return result
