"""A ledger of a script that `replicax run` has not started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import replicax.runtime.clock as clock
from replicax.checks import checked
from replicax.compat import jax_waits
from replicax.errors import ArgumentError
from replicax.job.processes.job_ledger import FOLDER


@contextlib.contextmanager
def recording(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Keeps a ledger of the `with` block in a folder, for a script or notebook that no launcher has started.

    In a job of `replicax run` it does nothing: the ledger of the job is kept already. The time is that of the main
    thread.

    Args:
        folder: The folder, which `rx.ledger.read` takes.

    Raises:
        ArgumentError: The folder cannot be written to.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> with tempfile.TemporaryDirectory() as folder, rx.ledger.recording(folder):
        ...     pass  # train
    """
    if clock.running is not None:
        yield
        return
    path = os.path.join(os.fspath(folder), FOLDER, "worker-0.jsonl")
    try:
        clock.start(path)
    except (OSError, TypeError) as error:
        raise ArgumentError(f"No ledger can be kept in {folder!r}: {error}. Choose another folder.") from error
    jax_waits.follow(lambda: clock.running)
    try:
        yield
    finally:
        clock.stop()


@contextlib.contextmanager
@checked
def section(what: str) -> Iterator[None]:
    """Lets the ledger count what a `with` block does as something of its own, such as an evaluation in a loop.

    Tracing and compiling in the block, and sections in it, count as what they are. Without a ledger it does nothing.

    Args:
        what: A class of `rx.ledger.CLASSES`: `"evaluation"`, `"checkpoint"`, `"waiting for input"` ...

    Raises:
        ArgumentError: There is no such class.

    Example:
        >>> import replicax as rx
        >>> with rx.ledger.section("evaluation"):
        ...     pass  # evaluate
    """
    if what not in clock.CLASSES:
        raise ArgumentError(f"`what` is one of {', '.join(map(repr, clock.CLASSES))}, got {what!r:.100}.")
    with clock.section(what):
        yield
