"""The board of a meeting: what its processes write into a store that all of them reach, and read there.

| key | written | what it says |
| --- | --- | --- |
| `life/<index>` | over and over | the number of the newest life of an island |
| `beat/<index>` | over and over | the life, a count, and what it is doing: a sign of life |
| `gone/<index>/<life>` | once | a life is over |
| `note/<index>` | over and over | the life waits for a roll after one that it has seen, with its note |
| `ending` | once | the whole job is to end |
| `passed/<index>` | once | after how many calls a life has last gone on, when all are to end |
| `at` | over and over | the number of a late roll, from which a newcomer reads on |
| `roll/<number>` | once | the lives that a roll names, with their notes; empty when it is forgotten |
| `service/<number>` | once | where the clique of a roll meets |
| `here/<roll>/<sum>/<index>` | once | a member has come to a sum, with shapes and dtypes |
| `ended/<roll>/<sum>/<index>` | once | a member has the result (empty), or the error |
| `outcome/<roll>/<sum>` | once | whether the sum counts |
| `call/<roll>` | once | a member of a roll asks for the next one; why |
| `silent/<roll>/<index>` | once | a member of a roll has heard nothing of a member for too long |
| `done/<roll>/<index>` | once | a member's script has ended |
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Protocol

from replicax.cluster.signing import SignedStore, checked
from replicax.errors import MeetingError
from replicax.group.membership.quorum import AGAIN, Life, Sheet

_AT_ONCE_S = 0.001
_FORGOTTEN = b""  # a roll that was
_KEPT = 50  # rolls
# Of older ones it is kept that there was one, for so many: a process that was cut off meanwhile could make one anew.
_KNOWN = 100_000


class Store(Protocol):
    """A key-value store that all processes reach; `replicax.compat.jax_cliques.StoreClient` is one."""

    def put(self, key: str, value: bytes) -> None:
        """Stores `value` under a key, in place of what was there."""

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Stores `value` unless the key is taken; returns whether it did. Of several processes exactly one succeeds."""

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Waits for the value of a key; returns None if there is none in time."""

    def listing(self, prefix: str) -> dict[str, bytes]:
        """Returns what is stored under all keys that begin with `prefix/`."""

    def delete(self, key: str) -> None:
        """Removes a key, and all keys that begin with `key/`."""


class _Signed(SignedStore[Store]):
    """The store, with the job's signatures."""

    def listing(self, prefix: str) -> dict[str, bytes]:
        return {key: checked(key, value, MeetingError) for key, value in self._store.listing(prefix).items()}


class Board:
    """Reads and writes the keys of a meeting.

    Each method that reads raises `MeetingError` if it finds what no process of this job has written.

    Args:
        store: Where they are.
    """

    def __init__(self, store: Store):
        self.store = _Signed(store, MeetingError)

    def enter(self, life: Life) -> None:
        """Tells that a life has begun."""
        self.store.put(f"life/{life.index}", str(life.number).encode())

    def beat(self, life: Life, count: int, doing: str) -> None:
        """Gives a sign of life."""
        self.store.put(f"beat/{life.index}", f"{life.number}:{count}:{doing}".encode())

    def end(self, life: Life) -> None:
        """Tells that a life is over."""
        self.store.put(f"gone/{life.index}/{life.number}", b"")

    def call(self, number: int, why: str) -> None:
        """Asks all members of a roll for the next one; the first reason stays."""
        self.store.put_if_absent(f"call/{number}", why.encode(errors="replace"))

    def called(self, number: int, timeout_s: float) -> str | None:
        """Waits until a member of a roll asks for the next one, and returns why; None if nobody does in time."""
        why = self.store.get(f"call/{number}", timeout_s)
        return None if why is None else why.decode()

    def suspect(self, number: int, lives: Iterable[Life]) -> None:
        """Tells the members of a roll that nothing was heard of some of them for too long."""
        for life in lives:
            self.store.put(f"silent/{number}/{life.index}", str(life.number).encode())

    def suspects(self, number: int) -> frozenset[Life]:
        """Returns the members of a roll of whom another one has heard nothing for too long."""
        found = _by_index(self.store, f"silent/{number}")
        return frozenset(Life(index, int(value)) for index, value in found.items())

    def tell_ending(self) -> None:
        """Tells everybody that the whole job is to end."""
        self.store.put("ending", b"")

    def is_ending(self, timeout_s: float) -> bool:
        """Waits until the whole job is to end; returns False if it is not in time."""
        return self.store.get("ending", timeout_s) is not None

    def tell_passed(self, life: Life, calls: int) -> None:
        """Tells after how many calls a life, of which all are to end, has last gone on."""
        self.store.put(f"passed/{life.index}", f"{life.number}:{calls}".encode())

    def passed(self) -> dict[Life, int]:
        """Returns what lives have told of that."""
        return {life: int(value) for life, value in _by_life(self.store, "passed").items()}

    def tell_done(self, number: int, index: int) -> None:
        """Tells the members of a roll that a member's script has ended."""
        self.store.put(f"done/{number}/{index}", b"")

    def done(self, number: int) -> frozenset[int]:
        """Returns the members of a roll whose scripts have ended."""
        return frozenset(_by_index(self.store, f"done/{number}"))

    def wait_with(self, life: Life, after: int, note: bytes) -> None:
        """Tells that a life waits for a roll after roll `after`, the last one that it has seen."""
        self.store.put(f"note/{life.index}", f"{life.number}:{after}:".encode() + note)

    def newest(self) -> dict[int, Life]:
        """Returns the newest life of each island that has come."""
        return {index: Life(index, int(value)) for index, value in _by_index(self.store, "life").items()}

    def beats(self) -> dict[Life, bytes]:
        """Returns the last sign of each life."""
        return _by_life(self.store, "beat")

    def notes(self) -> dict[Life, tuple[int, bytes]]:
        """Returns for each life that waits or has waited the last roll that it had seen then, and its note."""
        found = {}
        for life, value in _by_life(self.store, "note").items():
            seen, _, note = value.partition(b":")
            found[life] = int(seen), note
        return found

    def gone(self) -> frozenset[Life]:
        """Returns the lives that are over."""
        keys = (key.split("/")[-2:] for key in self.store.listing("gone"))
        return frozenset(Life(int(index), int(number)) for index, number in keys)

    def roll(self, number: int, timeout_s: float) -> Sheet | None:
        """Waits for a roll; returns None if it is not there in time, and a later one if it is forgotten."""
        found = self.store.get(f"roll/{number}", timeout_s)
        while found == _FORGOTTEN:
            number += 1
            found = self.store.get(f"roll/{number}", _AT_ONCE_S)
        return None if found is None else sheet_from(found)

    def latest(self) -> Sheet | None:
        """Returns the newest roll; None if there is none yet."""
        number, newest = int(self.store.get("at", _AT_ONCE_S) or 1), None
        while (found := self.roll(number, _AT_ONCE_S)) is not None:  # Its proposer may have been lost before it told.
            number, newest = found.number + 1, found
        return newest

    def propose(self, sheet: Sheet) -> None:
        """Proposes a roll; the first proposal holds. Old ones are forgotten."""
        if self.store.put_if_absent(f"roll/{sheet.number}", written(sheet)):
            self.store.put("at", str(sheet.number).encode())
            old = sheet.number - _KEPT
            for what in ("here", "ended", "outcome", "call", "silent", "done") if old > 0 else ():
                self.store.delete(f"{what}/{old}")
            if old > 0:
                self.store.put(f"roll/{old}", _FORGOTTEN)
            if old > _KNOWN:
                self.store.delete(f"roll/{old - _KNOWN}")

    def come(self, sum_name: str, index: int, signature: str) -> None:
        """Tells that a member has come to a sum."""
        self.store.put(f"here/{sum_name}/{index}", signature.encode())

    def wait_for(self, sum_name: str, index: int, timeout_s: float) -> None:
        """Waits until a member has come to a sum, or the time is up."""
        self.store.get(f"here/{sum_name}/{index}", timeout_s)

    def signatures(self, sum_name: str) -> dict[int, str]:
        """Returns the signatures of those who have come to a sum."""
        return {index: value.decode() for index, value in _by_index(self.store, f"here/{sum_name}").items()}

    def tell_end(self, sum_name: str, index: int, error: str) -> None:
        """Tells that a member has the result of a sum (without an error), or that it has failed."""
        self.store.put(f"ended/{sum_name}/{index}", error.encode(errors="replace"))

    def ended(self, sum_name: str) -> dict[int, bytes]:
        """Returns what the members have told of the end of a sum."""
        return _by_index(self.store, f"ended/{sum_name}")

    def judge(self, sum_name: str, outcome: bytes) -> bytes:
        """Proposes the outcome of a sum; the first proposal holds, and is returned."""
        if self.store.put_if_absent(f"outcome/{sum_name}", outcome):
            return outcome
        return self.outcome(sum_name, _AT_ONCE_S) or AGAIN  # It is forgotten: the others have gone on.

    def break_off(self, number: int) -> None:
        """Lets the sums of a roll fail whose lives are all over: at least the next one that they would have made."""
        index = 0
        while self.judge(f"{number}/{index}", AGAIN) != AGAIN:
            index += 1

    def outcome(self, sum_name: str, timeout_s: float) -> bytes | None:
        """Waits for the outcome of a sum; returns None if it is not there in time."""
        return self.store.get(f"outcome/{sum_name}", timeout_s)


def _by_index(store: Store, prefix: str) -> dict[int, bytes]:
    return {int(key.rpartition("/")[2]): value for key, value in store.listing(prefix).items()}


def _by_life(store: Store, prefix: str) -> dict[Life, bytes]:
    found = {}
    for index, value in _by_index(store, prefix).items():
        number, _, rest = value.partition(b":")
        found[Life(index, int(number))] = rest
    return found


def written(sheet: Sheet) -> bytes:
    """Returns a roll as it is stored."""
    lives, holders = ([[life.index, life.number] for life in each] for each in (sheet.lives, sheet.holders))
    absent = [[life.index, life.number, on] for life, on in sheet.absent]
    notes = [base64.b64encode(note).decode() for note in sheet.notes]
    return json.dumps([sheet.number, sheet.clique, lives, notes, holders, absent]).encode()


def sheet_from(found: bytes) -> Sheet:
    """Returns the roll that `written` has written."""
    number, clique, lives, notes, holders, absent = json.loads(found)
    return Sheet(
        number,
        clique,
        tuple(Life(*life) for life in lives),
        tuple(base64.b64decode(note) for note in notes),
        tuple(Life(*life) for life in holders),
        tuple((Life(index, life), on) for index, life, on in absent),
    )
