"""A folder in which checkpoints of a model appear: finding each new one, in order, and loading its weights."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from pathlib import Path
from typing import Any

from replicax.checkpoint import Checkpoint, numbered, read_metadata, restore_variables
from replicax.checkpoint.writing import absolute
from replicax.errors import CheckpointError

_log = logging.getLogger(__name__)
_FILES = (".keras", ".weights.h5")
_TRIES = 5
_NUMBER = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Found:
    """A checkpoint.

    Attributes:
        path: Where it is.
        step: Its step, as far as it is known.
        version: When it was written and how large it is, for a file that may be written again; empty for others.
    """

    path: Path
    step: int | None
    version: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name of the file or folder."""
        return self.path.name


class Watched:
    """A folder with checkpoints of `rx.CheckpointManager` or `rx.Checkpoint.save`, files of `ModelCheckpoint`, or both.

    Args:
        directory: The folder; it need not exist yet.
        name: How the model is called in checkpoints.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str):
        self.directory = absolute(directory)
        self._name = name
        self._done: set[Found] = set()
        self._failures: dict[Found, int] = {}

    def next(self) -> Found | None:
        """Returns the oldest checkpoint that was not loaded yet; None if there is none."""
        for found in (*self._checkpoints(), *self._files()):
            if found not in self._done:
                return found
        return None

    def load(self, found: Found, model: Any) -> bool:
        """Gives the model the weights of a checkpoint; returns whether it could: it may be gone, or half-written.

        Raises:
            CheckpointError: It does not fit the model, or it is a file that cannot be read again and again.
        """
        if found.name.endswith(_FILES):
            return self._load_file(found, model)
        try:
            self._check_names(found, model)
            # The optimizer and whatever else there is beside the model is meant to be left out, without a word.
            restore_variables(found.path, Checkpoint(**{self._name: model}).variables(), partial=True)
        except (CheckpointError, OSError):
            if found.path.is_dir() and found in self._checkpoints():
                raise
            _log.warning("Checkpoint %s was deleted before it could be evaluated.", found.path)
            self._done.add(found)
            return False
        self._done.add(found)
        return True

    def _checkpoints(self) -> list[Found]:
        return [Found(found.path, found.number) for found in numbered(self.directory)]

    def _files(self) -> list[Found]:
        found = []
        for path in self.directory.glob("*") if self.directory.is_dir() else ():
            # Names that begin with a dot are those of files being written.
            if path.name.endswith(_FILES) and not path.name.startswith("."):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                numbers = _NUMBER.findall(path.name.removesuffix(".h5"))
                found.append(Found(path, int(numbers[-1]) if numbers else None, (status.st_mtime_ns, status.st_size)))
        return sorted(found, key=lambda file: (file.version, file.step or 0, file.name))

    def _check_names(self, found: Found, model: Any) -> None:
        """A model that is called otherwise in the checkpoint would keep its own weights, and nobody would notice."""
        stored = read_metadata(found.path).arrays
        missing = [name for name in Checkpoint(**{self._name: model}).variables() if name not in stored]
        if missing:
            known = sorted({name.partition("/")[0] for name in stored})
            raise CheckpointError(
                f"Checkpoint {found.path} lacks {len(missing)} of the model's variables, such as {missing[0]!r}. It "
                f"holds the objects {known}: pass the model's name among them as `name`, and a model of the same "
                "architecture."
            )

    def _load_file(self, found: Found, model: Any) -> bool:
        """Loads a file that somebody may be writing just now; then it is tried again when it has changed, or later."""
        try:
            model.load_weights(str(found.path))
        except (OSError, ValueError, KeyError) as error:
            tries = self._failures[found] = self._failures.get(found, 0) + 1
            if not found.path.exists():
                _log.warning("File %s was deleted before it could be evaluated.", found.path)
                self._done.add(found)
            elif tries >= _TRIES:
                raise CheckpointError(f"File {found.path} does not hold this model's weights: {error}") from error
            return False
        self._done.add(found)
        return True
