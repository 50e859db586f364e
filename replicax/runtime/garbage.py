"""Python's garbage collector, while much is made that stays."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """Lets the collector wait until the block has ended.

    Tracing and lowering make some hundred thousand objects, which are all in use. The collector would go through them,
    and through everything that Keras and JAX have made before, again and again and for nothing: a tenth of a second
    each time.
    """
    runs = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if runs:
            gc.enable()
