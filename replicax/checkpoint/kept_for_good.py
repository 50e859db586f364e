"""Which old checkpoints a manager keeps for good: one every so many hours."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from replicax.checkpoint.json_fields import field_of, parsed
from replicax.checkpoint.numbered import NumberedCheckpoint
from replicax.checkpoint.places import Place, replace
from replicax.errors import CheckpointError

_FILE = "kept.json"  # Beside the checkpoints: a later run of the training goes on with it.


class PermanentCheckpoints:
    """The checkpoints that are kept for good, because each was written `hours` or more after the one before."""

    def __init__(self, directory: Place, hours: float):
        self._path, self._seconds = directory / _FILE, hours * 3600.0
        self._made_at = time.time()

    def names(self) -> list[str]:
        """Returns the names of the checkpoints that are kept for good."""
        return self._read()[1]

    def rest(self, old: Sequence[NumberedCheckpoint]) -> list[NumberedCheckpoint]:
        """Decides about checkpoints that are not among the newest any more, oldest first; returns those to delete."""
        last, names = self._read()
        rest = []
        for each in old:
            if each.written_at - last >= self._seconds:
                last = each.written_at
                names.append(each.name)
            else:
                rest.append(each)
        if len(rest) < len(old) or not self._path.exists():
            replace(self._path, json.dumps({"last": last, "names": names}).encode())
        return rest

    def _read(self) -> tuple[float, list[str]]:
        """Returns when the last permanent checkpoint was written (or the training began), and the names of all."""
        if not self._path.exists():
            return self._made_at, []
        try:
            document = parsed(self._path.read_bytes())
            return float(field_of(document, "last", float)), [str(name) for name in field_of(document, "names", list)]
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self._path} cannot be read: {error}. It says which checkpoints are kept for good: delete it, and "
                "move those that you want to keep to another folder."
            ) from error
