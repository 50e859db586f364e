"""The notes that islands bring when they meet."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from replicax.errors import ValuesMismatchError, WorkersDisagreeError


class Note(NamedTuple):
    """The note of one island."""

    # Why it came: "start" before its first step, "round" between steps, "end" in `synchronize`, "counts" for metrics.
    at: str
    fragments: tuple[int, ...]  # that it wants to be synchronized
    weights: tuple[float, ...]  # for each fragment, the work since that was synchronized: steps, or rows in `fit`
    step: int  # of its round
    steps: int  # in all
    since: tuple[int, ...]  # for each fragment, the steps since that was synchronized
    exchanges: int  # in which it has taken part, and those before whose values it took; 0 if it is new
    variables: tuple[int, int]  # a digest, and their number
    settings: str = ""
    assigned: int = 0  # digest of the values that Python has given to trained variables since the last exchange

    @property
    def waits(self) -> bool:
        """Whether the island makes no step before all others have come to the same place."""
        return self.at in ("end", "counts")

    def encoded(self) -> bytes:
        """Returns the note as it travels."""
        return json.dumps(self).encode()


def read_note(note: bytes) -> Note:
    """Returns the note of an island."""
    at, fragments, weights, step, steps, since, exchanges, variables, settings, assigned = json.loads(note)
    digest, count = variables
    numbers = tuple(fragments), tuple(weights), step, steps, tuple(since), exchanges, (digest, count)
    return Note(at, *numbers, settings, assigned)


def digest_of(descriptions: Sequence[str]) -> tuple[int, int]:
    """Returns what islands compare of their variables."""
    return zlib.crc32("\n".join(descriptions).encode()), len(descriptions)


def veterans(notes: Sequence[Note]) -> list[int]:
    """Returns the positions of the islands that were in the latest exchange; all others are new, or come too late."""
    latest = max(note.exchanges for note in notes)
    return [i for i, note in enumerate(notes) if note.exchanges == latest > 0]


def check_same_programs(names: Sequence[str], notes: Sequence[Note], here: int) -> None:
    """Checks that the islands have the same settings and variables."""
    # If those that train differ, or those that begin, all raise. One that joins later and differs raises alone: the
    # others lose it here.
    old = veterans(notes)
    compared = sorted({*(old or range(len(notes))), here})
    first = next(iter(old), 0)
    if len({notes[i].settings for i in compared}) > 1:
        raise WorkersDisagreeError("settings of the strategy", {names[i]: [notes[i].settings] for i in compared})
    for i in compared:
        if notes[i].variables != notes[first].variables:
            shown = [f"{notes[j].variables[1]} variables (digest {notes[j].variables[0]:08x})" for j in (first, i)]
            raise ValuesMismatchError("variables to be synchronized", names[first], shown[0], names[i], shown[1], 0)
    if len({notes[i].assigned for i in old}) > 1:
        digests = {names[i]: [f"digest {notes[i].assigned:08x}" if notes[i].assigned else "none"] for i in old}
        raise WorkersDisagreeError("values assigned to trained variables between two rounds, in no step", digests)
