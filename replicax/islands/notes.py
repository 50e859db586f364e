"""The notes that islands bring when they meet."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from replicax.errors import ValuesMismatchError


class Note(NamedTuple):
    """The note of one island.

    Attributes:
        at: Why it came: `"start"` before its first step, `"round"` in the midst of its steps, `"end"` when it has
            called `synchronize`, and `"counts"` to add up what metrics have counted.
        fragments: The fragments that it wants to be synchronized.
        weights: For each fragment how much work it has done since that was synchronized: steps, or rows in `fit`.
        step: How many steps of its round it has made.
        steps: How many steps it has made at all.
        since: For each fragment the steps since that was synchronized.
        exchanges: In how many exchanges it has taken part, and those before whose values it took; 0 if it is new.
        variables: What its variables are, a digest and a number.
    """

    at: str
    fragments: tuple[int, ...]
    weights: tuple[float, ...]
    step: int
    steps: int
    since: tuple[int, ...]
    exchanges: int
    variables: tuple[int, int]

    @property
    def waits(self) -> bool:
        """Whether the island makes no step before all others have come to the same place."""
        return self.at in ("end", "counts")

    def encoded(self) -> bytes:
        """Returns the note as it travels."""
        return json.dumps(self).encode()


def read_note(note: bytes) -> Note:
    """Returns the note of an island."""
    at, fragments, weights, step, steps, since, exchanges, variables = json.loads(note)
    digest, count = variables
    return Note(at, tuple(fragments), tuple(weights), step, steps, tuple(since), exchanges, (digest, count))


def digest_of(descriptions: Sequence[str]) -> tuple[int, int]:
    """Returns what islands compare of their variables."""
    return zlib.crc32("\n".join(descriptions).encode()), len(descriptions)


def veterans(notes: Sequence[Note]) -> list[int]:
    """Returns the positions of the islands that were in the latest exchange; all others are new, or come too late."""
    latest = max(note.exchanges for note in notes)
    return [i for i, note in enumerate(notes) if note.exchanges == latest > 0]


def check_same_variables(names: Sequence[str], notes: Sequence[Note], here: int) -> None:
    """Checks that this island has the variables of the others. (If it has not, they lose it here.)

    Args:
        names: What the islands are called.
        notes: Their notes.
        here: The position of this one.

    Raises:
        ValuesMismatchError: It has not.
    """
    first = next(iter(veterans(notes)), 0)
    if notes[here].variables != notes[first].variables:
        shown = [f"{notes[i].variables[1]} variables (digest {notes[i].variables[0]:08x})" for i in (first, here)]
        raise ValuesMismatchError("variables to be synchronized", names[first], shown[0], names[here], shown[1], 0)
