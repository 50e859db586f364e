"""The directory of a `CheckpointManager`: which checkpoints are in it, which is the newest, and which are deleted."""

from __future__ import annotations

import contextlib
import json
import logging
import time
import warnings
from collections.abc import Sequence

from replicax.checkpoint.json_fields import field_of, parsed
from replicax.checkpoint.metadata import FILE
from replicax.checkpoint.numbered import NumberedCheckpoint, name_of, numbered
from replicax.checkpoint.places import Place, clean, delete, place_of, replace
from replicax.checkpoint.policies import EveryHours, KeepPolicy, Newest
from replicax.errors import CheckpointError

_log = logging.getLogger(__name__)

_STRANGERS = (
    "{what}, and this CheckpointManager has neither written it nor found it there when it restored{so}. If another "
    "training writes there, one of them loses its checkpoints: give each a directory of its own. If this one goes on "
    "from there, call restore_or_initialize() first."
)
_LATER = (
    "Step {latest} is in {directory}, and the training that wrote it has gone back to step {back}. Step {step}, which "
    "is being saved, is newer, but whoever restores next gets step {latest}: delete the later ones of before if the "
    "training is to go on from here."
)


class CheckpointFolder:
    """The checkpoints of a training in a directory."""

    def __init__(self, directory: Place, prefix: str | None, keep: Sequence[KeepPolicy]):
        self._directory, self._prefix = directory, prefix  # without a prefix, names are numbers
        self._keeps_all = any(isinstance(each, Newest) and each.number is None for each in keep)
        hours = [each.hours for each in keep if isinstance(each, EveryHours)]
        self._keep, self._permanent = keep, PermanentCheckpoints(directory, min(hours)) if hours else None
        self.known: set[int] = set()  # steps that this training has written, or found when it restored
        self._left: set[int] = set()  # steps that it wrote or found, above one to which it has gone back since
        self._back: int | None = None  # the step to which it has gone back, until something is saved after it
        self.is_clean = False  # Nothing unfinished of an earlier run is left.

    def path(self, step: int) -> Place:
        """Returns the path of the checkpoint of a step, which need not exist."""
        return self._directory / name_of(step, self._prefix)

    def complete(self) -> list[NumberedCheckpoint]:
        """Returns the complete checkpoints, in the order of their steps."""
        return [each for each in numbered(self._directory) if each.prefix == self._prefix]

    def passing(self) -> list[NumberedCheckpoint]:
        """Returns the checkpoints that are not kept for good, oldest first."""
        permanent = self._names_kept_for_good()
        return sorted((each for each in self.complete() if each.name not in permanent), key=self._age)

    def latest_step(self) -> int | None:
        """Returns the step of the newest complete checkpoint: the highest, of the known ones if there are any."""
        newest = max(self.complete(), key=self._age, default=None)
        return None if newest is None else newest.number

    def go_back(self, step: int) -> None:
        """Notes that the training goes on from a step: it makes those above it again, or others."""
        later = {each for each in self.known if each > step}
        if later:
            self.known -= later
            self._left |= later
            self._back = step

    def warn_of_others(self, step: int) -> None:
        """Warns of steps that whoever restores next would take for newer than this one, which is to be saved."""
        back, self._back = self._back, None
        if back is not None:
            left = max((each.number for each in self.complete() if each.number in self._left), default=step)
            if left > step:
                warnings.warn(_LATER.format(latest=left, directory=self._directory, back=back, step=step), stacklevel=3)
        if step in self.known or step in self._left:
            return
        if (place_of(self.path(step)) / FILE).is_file():
            what, so = f"Step {step} is in {self._directory} already", ": it is replaced"
        else:
            latest = None if self.known else self.latest_step()
            if latest is None or latest <= step:
                return
            what = f"Step {latest} is in {self._directory}, and step {step} is being saved"
            so = ". It stays there, and whoever restores next gets it as the newest"
        warnings.warn(_STRANGERS.format(what=what, so=so), stacklevel=3)

    def clean(self) -> None:
        """Deletes, once, what an earlier run has left that was killed while it wrote, and says so."""
        if self.is_clean:
            return
        self.is_clean = True
        for path in clean(self._directory):
            _log.warning("An earlier process was ended while it wrote or deleted %s, which is left out.", path)

    def delete_old(self, newest: int) -> None:
        """Deletes the checkpoints beside a new one that nothing keeps, without those that are kept for good."""
        if self._keeps_all:
            return
        permanent, complete = self._names_kept_for_good(), self.complete()
        passing = [each for each in complete if each.name not in permanent and each.number != newest]
        others = [each for each in passing if each.number < newest or each.number in self.known]
        saved = [*others, *(each for each in complete if each.number == newest)]
        kept = {number for policy in self._keep for number in policy.kept(saved)}
        old = [each for each in others if each.number not in kept]
        for each in old if self._permanent is None else self._permanent.rest(old):
            with contextlib.suppress(OSError):  # That an old one cannot be deleted does not make the new one fail.
                delete(each.path)

    def _names_kept_for_good(self) -> Sequence[str]:
        return () if self._permanent is None else self._permanent.names()

    def _age(self, each: NumberedCheckpoint) -> tuple[bool, int]:
        return each.number in self.known, each.number


class PermanentCheckpoints:
    """The checkpoints in a folder that are kept for good, because each was written `hours` or more after another."""

    def __init__(self, directory: Place, hours: float):
        self._path, self._seconds = directory / "kept.json", hours * 3600.0
        self._made_at = time.time()

    def names(self) -> list[str]:
        """Returns the names of the checkpoints that are kept for good."""
        return self._read()[1]

    def rest(self, old: Sequence[NumberedCheckpoint]) -> list[NumberedCheckpoint]:
        """Decides about checkpoints that nothing else keeps any more, oldest first; returns those to delete."""
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
