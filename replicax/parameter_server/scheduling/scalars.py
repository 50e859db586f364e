"""Figures of workers and servers for TensorBoard."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from replicax.checks import checked_seconds
from replicax.errors import ArgumentError
from replicax.parameter_server.scheduling.periodic import Periodic
from replicax.parameter_server.scheduling.stats import Stats

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

# tensorboardX names a file by the second; a second one within the same second would overwrite the first.
_file_numbers = itertools.count()


@contextlib.contextmanager
def written_scalars(
    stats: Callable[[], Stats], directory: str | os.PathLike[str], every_s: float = 10.0
) -> Iterator[None]:
    """Writes `Stats.scalars()` for TensorBoard every `every_s` seconds of a `with` block, and once more at its end."""
    checked_seconds("every_s", every_s)
    writer = _writer(os.fspath(directory))

    def write() -> None:
        found = stats()
        for name, value in found.scalars().items():
            writer.add_scalar(name, value, found.steps)
        writer.flush()

    with contextlib.closing(writer), Periodic(write, every_s, "replicax-scalars"):
        yield


def _writer(directory: str) -> SummaryWriter:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ArgumentError(
            f"Figures for TensorBoard are written with tensorboardX, which cannot be imported ({error}). Install it: "
            "pip install 'replicax[tensorboard]'."
        ) from error
    try:
        return SummaryWriter(directory, filename_suffix=f".{os.getpid()}.{next(_file_numbers):06d}")
    except OSError as error:
        raise ArgumentError(
            f"Figures for TensorBoard cannot be written to {directory!r}: {error}. Give a folder that exists or can be "
            "made, and that this process may write to."
        ) from error
