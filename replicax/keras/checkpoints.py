"""A folder in which checkpoints of a model appear: finding each new one, in order, and loading its weights."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

from replicax.checkpoint import Checkpoint, numbered, read_metadata, restore_variables
from replicax.checkpoint.checkpoint_follower import Found, Outcome
from replicax.checkpoint.writing import absolute
from replicax.errors import CheckpointError

_log = logging.getLogger(__name__)
_FILES = (".keras", ".weights.h5")
_TRIES = 5
_NUMBER = re.compile(r"\d+")


class Watched:
    """A folder of checkpoints: of `rx.CheckpointManager`, `rx.Checkpoint.save`, or files of `ModelCheckpoint`."""

    def __init__(self, directory: str | os.PathLike[str], name: str):
        self.directory = absolute(directory)
        self._name = name
        self._failures: dict[Found, int] = {}

    def found(self) -> list[Found]:
        """Returns the checkpoints that are there: first those of managers, by number, then files, by age."""
        return [*self._checkpoints(), *self._files()]

    def load(self, found: Found, model: Any) -> Outcome:
        """Gives the model the weights of a checkpoint, which may be gone, or half-written."""
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
            return Outcome.GONE
        return Outcome.DONE

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
        """Checks that a checkpoint has the model's variables: a model of another name would silently keep its own."""
        stored = read_metadata(found.path).arrays
        missing = [name for name in Checkpoint(**{self._name: model}).variables() if name not in stored]
        if missing:
            known = sorted({name.partition("/")[0] for name in stored})
            raise CheckpointError(
                f"Checkpoint {found.path} lacks {len(missing)} of the model's variables, such as {missing[0]!r}. It "
                f"holds the objects {known}: pass the model's name among them as `name`, and a model of the same "
                "architecture."
            )

    def _load_file(self, found: Found, model: Any) -> Outcome:
        """Loads a file that may be half-written; if that fails, it is tried again when it has changed, or later."""
        try:
            model.load_weights(str(found.path))
        except (OSError, ValueError, KeyError) as error:
            tries = self._failures[found] = self._failures.get(found, 0) + 1
            if not found.path.exists():
                _log.warning("File %s was deleted before it could be evaluated.", found.path)
                return Outcome.GONE
            if tries >= _TRIES:
                raise CheckpointError(f"File {found.path} does not hold this model's weights: {error}") from error
            return Outcome.LATER
        return Outcome.DONE
