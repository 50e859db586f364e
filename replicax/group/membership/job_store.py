"""The job store of a meeting: what its processes write into a store that all of them reach, and read there.

| key | written | what it says |
| --- | --- | --- |
| `life/<index>` | over and over | the number of the newest incarnation of an island |
| `beat/<index>` | over and over | the incarnation, a count, and what it is doing: a sign of life |
| `gone/<index>/<incarnation>` | once | an incarnation is over |
| `note/<index>` | over and over | the incarnation waits for a quorum after one that it has seen, with its note |
| `ending` | once | the whole job is to end |
| `passed/<index>` | once | after how many calls an incarnation has last gone on, when all are to end |
| `at` | over and over | the number of a late quorum, from which a newcomer reads on |
| `roll/<number>` | once | the incarnations that a quorum names, with their notes; empty when it is forgotten |
| `service/<number>` | once | where the clique of a quorum meets |
| `here/<quorum>/<sum>/<index>` | once | a member has come to a sum, with shapes and dtypes |
| `ended/<quorum>/<sum>/<index>` | once | a member has the result (empty), or the error |
| `outcome/<quorum>/<sum>` | once | whether the sum counts |
| `call/<quorum>` | once | a member of a quorum asks for the next one; why |
| `silent/<quorum>/<index>` | once | a member of a quorum has heard nothing of a member for too long |
| `done/<quorum>/<index>` | once | a member's script has ended |
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Protocol

from replicax.cluster.signing import SignedStore, checked
from replicax.contracts.group import Incarnation
from replicax.errors import MeetingError
from replicax.group.membership.quorum import AGAIN, QuorumRecord

_AT_ONCE_S = 0.001  # to read what is there
_FORGOTTEN = b""  # a quorum that was
_KEPT = 50  # quorums
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


class JobStore:
    """Reads and writes the keys of a meeting; raises a `MeetingError` for values that no process of this job wrote."""

    def __init__(self, store: Store):
        self.store = _Signed(store, MeetingError)

    def enter(self, incarnation: Incarnation) -> None:
        """Tells that an incarnation has begun."""
        self.store.put(f"life/{incarnation.index}", str(incarnation.number).encode())

    def beat(self, incarnation: Incarnation, count: int, doing: str) -> None:
        """Gives a sign of life."""
        self.store.put(f"beat/{incarnation.index}", f"{incarnation.number}:{count}:{doing}".encode())

    def end(self, incarnation: Incarnation) -> None:
        """Tells that an incarnation is over."""
        self.store.put(f"gone/{incarnation.index}/{incarnation.number}", b"")

    def call(self, number: int, why: str) -> None:
        """Asks all members of a quorum for the next one; the first reason stays."""
        self.store.put_if_absent(f"call/{number}", why.encode(errors="replace"))

    def called(self, number: int, timeout_s: float) -> str | None:
        """Waits until a member of a quorum asks for the next one, and returns why; None if nobody does in time."""
        why = self.store.get(f"call/{number}", timeout_s)
        return None if why is None else why.decode()

    def suspect(self, number: int, incarnations: Iterable[Incarnation]) -> None:
        """Tells the members of a quorum that nothing was heard of some of them for too long."""
        for incarnation in incarnations:
            self.store.put(f"silent/{number}/{incarnation.index}", str(incarnation.number).encode())

    def suspects(self, number: int) -> frozenset[Incarnation]:
        """Returns the members of a quorum of whom another one has heard nothing for too long."""
        found = _by_index(self.store, f"silent/{number}")
        return frozenset(Incarnation(index, int(value)) for index, value in found.items())

    def tell_ending(self) -> None:
        """Tells everybody that the whole job is to end."""
        self.store.put("ending", b"")

    def is_ending(self, timeout_s: float) -> bool:
        """Waits until the whole job is to end; returns False if it is not in time."""
        return self.store.get("ending", timeout_s) is not None

    def tell_passed(self, incarnation: Incarnation, calls: int) -> None:
        """Tells after how many calls an incarnation, of which all are to end, has last gone on."""
        self.store.put(f"passed/{incarnation.index}", f"{incarnation.number}:{calls}".encode())

    def passed(self) -> dict[Incarnation, int]:
        """Returns what incarnations have told of that."""
        return {incarnation: int(value) for incarnation, value in _by_life(self.store, "passed").items()}

    def tell_done(self, number: int, index: int) -> None:
        """Tells the members of a quorum that a member's script has ended."""
        self.store.put(f"done/{number}/{index}", b"")

    def done(self, number: int) -> frozenset[int]:
        """Returns the members of a quorum whose scripts have ended."""
        return frozenset(_by_index(self.store, f"done/{number}"))

    def wait_with(self, incarnation: Incarnation, after: int, note: bytes) -> None:
        """Tells that an incarnation waits for a quorum after quorum `after`, the last one that it has seen."""
        self.store.put(f"note/{incarnation.index}", f"{incarnation.number}:{after}:".encode() + note)

    def newest(self) -> dict[int, Incarnation]:
        """Returns the newest incarnation of each island that has come."""
        return {index: Incarnation(index, int(value)) for index, value in _by_index(self.store, "life").items()}

    def beats(self) -> dict[Incarnation, bytes]:
        """Returns the last sign of each incarnation."""
        return _by_life(self.store, "beat")

    def notes(self) -> dict[Incarnation, tuple[int, bytes]]:
        """Returns for each incarnation that waits or has waited the last quorum that it had seen then, and its note."""
        found = {}
        for incarnation, value in _by_life(self.store, "note").items():
            seen, _, note = value.partition(b":")
            found[incarnation] = int(seen), note
        return found

    def gone(self) -> frozenset[Incarnation]:
        keys = (key.split("/")[-2:] for key in self.store.listing("gone"))
        return frozenset(Incarnation(int(index), int(number)) for index, number in keys)

    def quorum(self, number: int, timeout_s: float) -> QuorumRecord | None:
        """Waits for a quorum; returns None if it is not there in time, and a later one if it is forgotten."""
        found = self.store.get(f"roll/{number}", timeout_s)
        while found == _FORGOTTEN:
            number += 1
            found = self.store.get(f"roll/{number}", _AT_ONCE_S)
        return None if found is None else sheet_from(found)

    def latest(self) -> QuorumRecord | None:
        """Returns the newest quorum; None if there is none yet."""
        number, newest = int(self.store.get("at", _AT_ONCE_S) or 1), None
        while (found := self.quorum(number, _AT_ONCE_S)) is not None:  # Its proposer may have been lost before it told.
            number, newest = found.number + 1, found
        return newest

    def propose(self, record: QuorumRecord) -> None:
        """Proposes a quorum; the first proposal holds. Old ones are forgotten."""
        if self.store.put_if_absent(f"roll/{record.number}", written(record)):
            self.store.put("at", str(record.number).encode())
            old = record.number - _KEPT
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
        """Lets the sums of a quorum fail whose incarnations are all over, at least the next one."""
        index = 0
        while self.judge(f"{number}/{index}", AGAIN) != AGAIN:
            index += 1

    def outcome(self, sum_name: str, timeout_s: float) -> bytes | None:
        """Waits for the outcome of a sum; returns None if it is not there in time."""
        return self.store.get(f"outcome/{sum_name}", timeout_s)


def _by_index(store: Store, prefix: str) -> dict[int, bytes]:
    return {int(key.rpartition("/")[2]): value for key, value in store.listing(prefix).items()}


def _by_life(store: Store, prefix: str) -> dict[Incarnation, bytes]:
    found = {}
    for index, value in _by_index(store, prefix).items():
        number, _, rest = value.partition(b":")
        found[Incarnation(index, int(number))] = rest
    return found


def written(record: QuorumRecord) -> bytes:
    """Returns a quorum as it is stored."""
    incarnations, holders = (
        [[incarnation.index, incarnation.number] for incarnation in each]
        for each in (record.incarnations, record.holders)
    )
    absent = [[incarnation.index, incarnation.number, on] for incarnation, on in record.absent]
    notes = [base64.b64encode(note).decode() for note in record.notes]
    return json.dumps([record.number, record.clique, incarnations, notes, holders, absent]).encode()


def sheet_from(found: bytes) -> QuorumRecord:
    """Returns the quorum that `written` has written."""
    number, clique, incarnations, notes, holders, absent = json.loads(found)
    return QuorumRecord(
        number,
        clique,
        tuple(Incarnation(*incarnation) for incarnation in incarnations),
        tuple(base64.b64decode(note) for note in notes),
        tuple(Incarnation(*incarnation) for incarnation in holders),
        tuple((Incarnation(index, incarnation), on) for index, incarnation, on in absent),
    )
