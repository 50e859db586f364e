"""Pure decisions of a meeting: who is on the next quorum, and whether a sum counts. No clock, no store, no sockets.

Whoever sees that a decision can be made proposes it; the store keeps the first proposal of each number. So it does not
matter that two processes see different things: one of the proposals holds for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from replicax.contracts.group import Incarnation

DONE, AGAIN = b"done", b"again"


@dataclasses.dataclass(frozen=True)
class QuorumRecord:
    """A quorum as it stands in the store."""

    number: int  # from 1
    clique: int  # number of the quorum since which the same incarnations take part, without a failed sum in between
    incarnations: tuple[Incarnation, ...]  # that take part, by index, ascending
    notes: tuple[bytes, ...]  # of each of them
    # Those that hold the state with which the exchange begins: the incarnations of the last quorum whose sums have not
    # failed. At the start none holds one, and all incarnations are named.
    holders: tuple[Incarnation, ...]
    # Those that were on an earlier quorum and are not on this one, each with the number of the last one it was on.
    absent: tuple[tuple[Incarnation, int], ...] = ()

    def holders_after(self, broken: bool) -> tuple[Incarnation, ...]:
        """Returns the incarnations that hold the state after this quorum, given whether a sum of it has failed."""
        return self.holders if broken else self.incarnations

    def last_rolls(self) -> dict[Incarnation, int]:
        """Returns the number of the last quorum of each incarnation that was on one."""
        return dict(self.absent) | dict.fromkeys(self.incarnations, self.number)


@dataclasses.dataclass(frozen=True)
class View:
    """The knowledge that a process has of the others."""

    newest: Mapping[int, Incarnation]  # of each island that has ever come
    gone: Collection[Incarnation] = frozenset()  # They are over.
    silent: Collection[Incarnation] = frozenset()  # They have shown no sign of life for too long.
    # For those that wait, the number of the last quorum that they had seen then, and the note.
    notes: Mapping[Incarnation, tuple[int, bytes]] = dataclasses.field(default_factory=dict)

    def is_over(self, incarnation: Incarnation) -> bool:
        """Returns whether an incarnation is over for certain: it ended, or a replacement has come."""
        return incarnation in self.gone or self.newest.get(incarnation.index, incarnation) != incarnation

    def is_up(self, incarnation: Incarnation) -> bool:
        """Returns whether an incarnation counts as up: it is not over, and it is heard of."""
        return not self.is_over(incarnation) and incarnation not in self.silent

    def ready(self, last: QuorumRecord | None) -> dict[Incarnation, bytes]:
        """Returns the notes for the quorum after `last` of those that are up."""
        # A quorum uses the notes up: one written before the last quorum of its incarnation is of no use any more.
        used = last.last_rolls() if last is not None else {}
        notes = self.notes.items()
        return {
            incarnation: note
            for incarnation, (seen, note) in notes
            if self.is_up(incarnation) and seen >= used.get(incarnation, 0)
        }


def expected(last: QuorumRecord | None, broken: bool, size: int, view: View, only_holders: bool = False) -> list[int]:
    """Returns the islands for which the next quorum must still wait; `broken`: a sum of the last one has failed."""
    ready = view.ready(last)
    if last is None:
        return [index for index in range(size) if index not in {incarnation.index for incarnation in ready}]
    # Others take part if they have come by then, but the quorum does not wait for them.
    awaited = {*last.holders_after(broken), *(() if only_holders else last.incarnations)}
    return sorted(incarnation.index for incarnation in awaited if view.is_up(incarnation) and incarnation not in ready)


#: Whether a quorum takes an incarnation that does not hold the state, given its note and the notes of those that do.
Admits = Callable[[Mapping[Incarnation, bytes], bytes], bool]


def next_record(
    last: QuorumRecord | None, broken: bool, size: int, view: View, renews: bool = False, admits: Admits | None = None
) -> QuorumRecord | None:
    """Returns the next quorum; None if it must still wait, or no incarnation that holds the state is up."""
    ready = view.ready(last)
    if expected(last, broken, size, view, admits is not None):
        return None
    holders = last.holders_after(broken) if last is not None else tuple(sorted(ready))
    held = {incarnation: note for incarnation, note in ready.items() if incarnation in holders}
    incarnations = tuple(
        sorted(
            incarnation
            for incarnation in ready
            if incarnation in held or admits is None or admits(held, ready[incarnation])
        )
    )
    if not incarnations:
        return None
    notes = tuple(ready[incarnation] for incarnation in incarnations)
    if last is None:
        return QuorumRecord(1, 1, incarnations, notes, incarnations)
    if not set(holders) & set(incarnations):
        return None
    number = last.number + 1
    # After a failed sum the old connections are of no use; with `renews`, each quorum has connections of its own.
    clique = last.clique if last.incarnations == incarnations and not broken and not renews else number
    absent = [
        (incarnation, on)
        for incarnation, on in last.last_rolls().items()
        if incarnation not in incarnations and not view.is_over(incarnation)
    ]
    return QuorumRecord(number, clique, incarnations, notes, holders, tuple(absent))


def is_abandoned(last: QuorumRecord | None, broken: bool | None, view: View) -> bool:
    """Returns whether the state of the training is gone with those who held it; `broken` is None if it is unknown."""
    if last is None:
        return False
    holders = {*last.incarnations, *last.holders} if broken is None else {*last.holders_after(broken)}
    return all(view.is_over(incarnation) for incarnation in holders)


def verdict(record: QuorumRecord, ended: Mapping[int, bytes], view: View) -> bytes | None:
    """Returns whether a sum counts (`DONE`), must be repeated (`AGAIN`), or is still going on (None)."""
    if any(ended.values()):  # They are errors; a member that has the result tells an empty one.
        return AGAIN
    if all(incarnation.index in ended for incarnation in record.incarnations):
        return DONE  # also if some of them were lost afterwards
    lost = any(not view.is_up(incarnation) and incarnation.index not in ended for incarnation in record.incarnations)
    return AGAIN if lost else None
