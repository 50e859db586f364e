"""Numbered checkpoints in a folder: `00000010` as a manager names them, `ckpt-10` as `Checkpoint.save` does."""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from pathlib import Path

import replicax.checkpoint.background as background
from replicax.checkpoint.foreign import tensorflow_checkpoints
from replicax.checkpoint.metadata import FILE, read_metadata
from replicax.checkpoint.places import Directory, Place, absolute, complete_in
from replicax.contracts.called_as import called_as
from replicax.errors import CheckpointError

_log = logging.getLogger(__name__)
_NAME = re.compile(r"(?:(?P<prefix>.*)-)?(?P<number>\d+)", re.DOTALL)
_DIGITS = 8  # At least so many without a prefix, since other folders may have a number as name.


@dataclasses.dataclass(frozen=True)
class NumberedCheckpoint:
    """A complete checkpoint with a number in its name."""

    path: Place
    number: int
    prefix: str | None  # of its name, before the `-`; None if the name is only the number

    @property
    def name(self) -> str:
        """The name of its directory; `path` has another one if its writer was killed while it replaced it."""
        return name_of(self.number, self.prefix)

    @property
    def written_at(self) -> float:
        """When it was completed, in seconds since the epoch."""
        return self.written_ns / 1e9

    @functools.cached_property
    def notes(self) -> dict[str, object]:
        """The notes of its training, by name; they are read once. Of a damaged one, none are known."""
        try:
            return dict(read_metadata(self.path).notes)
        except CheckpointError as error:  # Another one is being saved or restored, which is none the worse for it.
            _log.warning("The notes of the checkpoint of step %s are not known: %s", self.number, error)
            return {}

    @property
    def written_ns(self) -> int:
        """When it was completed, in nanoseconds since the epoch; a `FileNotFoundError` if it is gone."""
        if isinstance(self.path, Path):
            return (self.path / FILE).stat().st_mtime_ns
        return int(1e9 * (read_metadata(self.path).written_at or 0.0))


def name_of(number: int, prefix: str | None) -> str:
    """Returns the name of a checkpoint."""
    return f"{number:0{_DIGITS}d}" if prefix is None else f"{prefix}-{number}"


def numbered(directory: Place) -> list[NumberedCheckpoint]:
    """Returns the complete checkpoints in a folder, in the order of their numbers; none if there is no such folder."""
    found = []
    for each, place in complete_in(directory).items():
        name = _NAME.fullmatch(each)
        if name is None or (name["prefix"] is None and len(each) < _DIGITS):
            continue
        if name_of(int(name["number"]), name["prefix"]) == each:
            found.append(NumberedCheckpoint(place, int(name["number"]), name["prefix"]))
    return sorted(found, key=lambda each: (each.number, each.prefix or ""))


def newest(directory: Place) -> NumberedCheckpoint | None:
    """Returns the newest checkpoint in a folder: the highest number of the prefix that was written last."""
    last = {each.prefix: each for each in numbered(directory)}
    return max(last.values(), key=lambda each: each.written_at, default=None)


@called_as("tf.train.latest_checkpoint")
def latest_checkpoint(checkpoint_dir: Directory) -> str | None:
    """Returns the path of the newest complete checkpoint in a folder, None if there is none.

    It finds what `Checkpoint.save` and `CheckpointManager` write, and takes the highest number. It waits for a save of
    this process that is under way. In a folder that has only checkpoints of TensorFlow's it finds the one that the file
    `checkpoint` there names.

    Args:
        checkpoint_dir: The folder; it need not exist.

    Raises:
        ArgumentError: `checkpoint_dir` is not a path.
        CheckpointError: TensorFlow's file `checkpoint` is damaged, or names one that is not there.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> latest_checkpoint(folder) is None
        True
    """
    directory = absolute(checkpoint_dir)
    background.wait_for(directory)
    found = newest(directory)
    if found is not None:
        return str(found.path)
    of_tensorflow = tensorflow_checkpoints().latest_tensorflow(directory) if isinstance(directory, Path) else None
    return None if of_tensorflow is None else str(of_tensorflow)
