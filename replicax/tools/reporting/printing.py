"""Printing once a job."""

from __future__ import annotations

import builtins
from typing import IO

import jax

from replicax.errors import ContextError
from replicax.tools.reporting.chief import is_chief


def print(*values: object, sep: str = " ", end: str = "\n", file: IO[str] | None = None, flush: bool = True) -> None:
    """Prints on the chief only: once a job, however many workers call it.

    Every worker may call it, and none waits for another. It is for the loop, not for a step: a step is traced once and
    runs on all devices.

    Args:
        values: What is printed, as by Python's `print`.
        sep: What stands between them.
        end: What stands after them.
        file: Where to; by default `sys.stdout`.
        flush: Whether it appears at once, also where the output is a file or a pipe.

    Raises:
        ContextError: One of `values` is traced: it has no value yet.

    Example:
        >>> import replicax as rx
        >>> rx.print("epoch", 1, "loss", 0.25)
        epoch 1 loss 0.25
    """
    for value in values:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
            raise ContextError(
                f"rx.print was called in a step that is being traced, with {value!r:.100}, which has no value yet. "
                "Return it from the step and print it in the loop; or call jax.debug.print, which prints on each "
                "device."
            )
    if is_chief():
        builtins.print(*values, sep=sep, end=end, file=file, flush=flush)
