"""Delays Python's garbage collector while many objects are made that stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """Delays the collector until the end of the block."""
    # Tracing and lowering make some hundred thousand objects, which all stay in use. The collector would look through
    # them and everything else again and again, for nothing: a tenth of a second each time.
    runs = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if runs:
            gc.enable()
