"""The order of calls: what this process has run together with the others, as a number and a digest.

Workers compare programs when these run for the first time. After that nothing in a step would show that one runs A
then B and another B then A: collectives of equal shapes pair up wrongly, in silence. So each worker keeps a digest over
all its calls. The monitors exchange it once a second: of two workers whose digests after the same number of calls
differ, one has run something else. This costs no communication in the step.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

# A polynomial modulo a prime, since each call costs two operations on small integers.
_PRIME = 2**61 - 1
_FACTOR = 0x1B8736A1C3D5E7F9 % _PRIME
_REMEMBERED = 2**14  # calls; a peer's answer is at most a second or two old


class RecordedCall(NamedTuple):
    """A call.

    Attributes:
        number: Its number, from 1; 0 is before the first.
        digest: Of all calls up to it.
        program: What it ran, in words.
    """

    number: int
    digest: int
    program: str


@dataclasses.dataclass(frozen=True)
class CallDescription:
    """What is noted of a call.

    Attributes:
        words: What it runs, in words.
        token: A number that tells it from others, the same in all processes.
    """

    words: str
    token: int

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of(cls, name: str, what: str = "") -> CallDescription:
        """Returns what to note of a program called `name`, told from others of that name by `what`."""
        words = f"{name!r} ({what})" if what else repr(name)
        digest = hashlib.sha256(words.encode(errors="replace")).digest()
        return cls(words, 1 + int.from_bytes(digest[:8], "big") % (_PRIME - 1))


class Order:
    """The calls of this process. One thread notes them, any other may read."""

    def __init__(self) -> None:
        self._last = RecordedCall(0, 0, "")
        self._ring: list[RecordedCall] = [self._last] * _REMEMBERED

    @property
    def last(self) -> tuple[int, int]:
        """Number and digest of the last call."""
        return self._last[:2]

    def note(self, program: CallDescription) -> None:
        """Notes a call."""
        number, digest, _ = self._last
        noted = RecordedCall(number + 1, (digest * _FACTOR + program.token) % _PRIME, program.words)
        self._ring[noted.number % _REMEMBERED] = noted  # before the last: who knows its number finds it
        self._last = noted

    def get(self, number: int) -> RecordedCall | None:
        """Returns the call of a number; None if it has not been made yet, or too long ago."""
        noted = self._ring[number % _REMEMBERED]
        return noted if noted.number == number else None

    def contradicts(self, theirs: tuple[int, int]) -> bool:
        """Returns whether a worker whose last call is `theirs` has run something else; who is ahead may judge."""
        number, digest = theirs
        mine = self.get(number)
        return mine is not None and mine.digest != digest

    def difference(
        self, last: tuple[int, int], theirs: Callable[[int], RecordedCall | None]
    ) -> tuple[RecordedCall | None, RecordedCall | None]:
        """Returns the first call of this worker and that of another one that are not the same.

        Args:
            last: Number and digest of the other's last call.
            theirs: Returns the other's call of a number, None if it has made none or does not know it any more.

        Returns:
            None for who has made fewer calls, and for both if the one or the other does not remember it.
        """
        both = min(last[0], self._last.number)
        known = theirs(both) if last[0] > both else last  # The other's, at a call that both have made.
        if known is None or self.contradicts((both, known[1])):
            return self._first_difference(both, theirs) or (None, None)
        return self.get(both + 1), theirs(both + 1)

    def _first_difference(
        self, last: int, theirs: Callable[[int], RecordedCall | None]
    ) -> tuple[RecordedCall, RecordedCall] | None:
        """Looks for it by halves: once digests differ, they differ for good."""
        same, differs = max(0, self._last.number - _REMEMBERED), last
        found: tuple[RecordedCall, RecordedCall] | None = None
        while differs - same > 1 or found is None:
            number = (same + differs) // 2 if differs - same > 1 else differs
            pair = self.get(number), theirs(number)
            if pair[0] is None or pair[1] is None or pair[0].digest == pair[1].digest:
                if number == differs:
                    return None
                same = number
            else:
                differs, found = number, (pair[0], pair[1])
        return found


def order_from(document: Any) -> tuple[int, int]:
    """Returns the number and digest that another process has sent, as JSON gives them.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(document, list | tuple) or [type(item) for item in document] != [int, int]:
        raise ValueError(f"not the number and digest of a call: {document!r:.100}")
    number, digest = document
    return number, digest


def recorded_call_from(document: Any) -> RecordedCall | None:
    """Returns a call that another process has sent, as JSON gives it; None if it does not know it.

    Raises:
        ValueError: It is none.
    """
    if document is None:
        return None
    if not isinstance(document, list) or [type(item) for item in document] != [int, int, str]:
        raise ValueError(f"not a call: {document!r:.100}")
    return RecordedCall(*document)
