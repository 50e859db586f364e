"""The order of calls: the programs that this process has run together with the others, as a number and a digest.

Workers compare programs when these run for the first time. Later, one worker might run A then B and another B then A:
collectives of equal shapes would then pair up wrongly, and silently. So each worker keeps a digest of all its calls,
and the monitors exchange it once a second. If two digests after the same number of calls differ, the workers have run
different programs, or one with different arguments. This costs no communication in the step.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import NamedTuple

# A polynomial modulo a prime, since each call costs two operations on small integers.
_PRIME = 2**61 - 1
_FACTOR = 0x1B8736A1C3D5E7F9 % _PRIME
_REMEMBERED = 2**14  # calls; a peer's answer is at most two seconds old
_SHOWN = 4  # arguments of a call


class ArgumentValue(NamedTuple):
    """An argument of a program that each process has made for itself, such as a number."""

    name: str
    checksum: int
    shown: str  # for people
    is_fixed: bool = False  # a part of the program, as a flag is


class RecordedCall(NamedTuple):
    """A call that this process has made."""

    number: int  # from 1; 0 stands for the time before the first
    digest: int  # of all calls up to this one
    program: str  # for people
    arguments: str = ""  # for people: those that each process makes for itself


@dataclasses.dataclass(frozen=True)
class CallDescription:
    """A noted call."""

    words: str  # what it runs, for people
    token: int  # identifies it, the same in all processes
    what: str = ""  # distinguishes it from others of its name
    arguments: str = ""  # what it is given, for people

    @classmethod
    def outside(cls, words: str, kind: str) -> CallDescription:
        """Returns what to note of something that all do together outside of programs."""
        # The words are not compared: they may name an own folder.
        return dataclasses.replace(cls.of(kind), words=repr(words))

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of(cls, name: str, what: str = "") -> CallDescription:
        """Returns what to note of a program called `name`; `what` distinguishes it from others of that name."""
        words = f"{name!r} ({what})" if what else repr(name)
        digest = hashlib.sha256(words.encode(errors="replace")).digest()
        return cls(words, 1 + int.from_bytes(digest[:8], "big") % (_PRIME - 1), what)

    def given(self, arguments: tuple[ArgumentValue, ...]) -> CallDescription:
        """Returns what to note of a call with these arguments, which all processes must give it alike."""
        return _given(self, arguments) if arguments else self


@functools.lru_cache(maxsize=1024)
def _given(program: CallDescription, arguments: tuple[ArgumentValue, ...]) -> CallDescription:
    token = functools.reduce(lambda token, each: (token * _FACTOR + each.checksum + 1) % _PRIME, arguments, 0)
    words = ", ".join(f"{each.name}={each.shown}" for each in arguments[:_SHOWN])
    more = f" and {len(arguments) - _SHOWN} more (together {token:x})" if len(arguments) > _SHOWN else ""
    return dataclasses.replace(program, token=(program.token + token) % _PRIME, arguments=words + more)


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
        number, digest = self.last
        noted = RecordedCall(number + 1, (digest * _FACTOR + program.token) % _PRIME, program.words, program.arguments)
        self._ring[noted.number % _REMEMBERED] = (
            noted  # Before `_last` is set, so that a reader who knows the number finds the call.
        )
        self._last = noted

    def take_back(self, number: int) -> bool:
        """Takes a call back in which nothing has been done; returns whether it was the last one."""
        before = self.get(number - 1)
        if self._last.number != number or before is None:
            return False
        self._last = before
        self._ring[number % _REMEMBERED] = RecordedCall(0, 0, "")
        return True

    def get(self, number: int) -> RecordedCall | None:
        """Returns the `number`-th call; None if it has not been made yet, or was too long ago."""
        noted = self._ring[number % _REMEMBERED]
        return noted if noted.number == number else None

    def contradicts(self, theirs: tuple[int, int]) -> bool:
        """Returns whether a worker whose last call is `theirs` has run something else; only the one ahead can tell."""
        number, digest = theirs
        mine = self.get(number)
        return mine is not None and mine.digest != digest

    def difference(
        self, last: tuple[int, int], theirs: Callable[[int], RecordedCall | None]
    ) -> tuple[RecordedCall | None, RecordedCall | None]:
        """Returns the first calls in which this worker and another one differ: this worker's and the other's."""
        # `theirs` returns None for a call that the other worker has not made, or does not remember.
        both = min(last[0], self._last.number)
        known = theirs(both) if last[0] > both else last  # The other's digest at a call that both have made.
        if known is None or self.contradicts((both, known[1])):
            return self._first_difference(both, theirs) or (None, None)  # None: one of them does not remember the call.
        return self.get(both + 1), theirs(both + 1)  # None for the worker that has made fewer calls.

    def _first_difference(
        self, last: int, theirs: Callable[[int], RecordedCall | None]
    ) -> tuple[RecordedCall, RecordedCall] | None:
        """Finds it by bisection: once digests differ, they stay different."""
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


def order_from(document: object) -> tuple[int, int]:
    """Returns the number and digest of a call from the JSON of another process."""
    if not isinstance(document, list | tuple) or [type(item) for item in document] != [int, int]:
        raise ValueError(f"not the number and digest of a call: {document!r:.100}")
    number, digest = document
    return number, digest


def recorded_call_from(document: object) -> RecordedCall | None:
    """Returns a call from the JSON of another process; None if that does not know the call."""
    if document is None:
        return None
    if not isinstance(document, list) or [type(item) for item in document] != [int, int, str, str]:
        raise ValueError(f"not a call: {document!r:.100}")
    return RecordedCall(*document)
