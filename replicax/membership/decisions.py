"""Pure decisions of a meeting: who is on the next roll, and whether a sum counts. No clock, no store, no sockets.

Whoever sees that a decision can be made proposes it; the store keeps the first proposal of each number. So it does not
matter that two processes see different things: one of the proposals holds for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

DONE, AGAIN = b"done", b"again"


@dataclasses.dataclass(frozen=True, order=True)
class Life:
    """One run of a process: a replacement has the index of the process that it replaces, and another number.

    Attributes:
        index: The index of the island.
        number: Counts the runs of this island.
    """

    index: int
    number: int


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A roll as it stands in the store.

    Attributes:
        number: Its number, from 1.
        clique: The number of the roll since which the same lives take part, without a failed sum in between.
        lives: The lives that take part, by index, ascending.
        notes: For each the note that it brought.
    """

    number: int
    clique: int
    lives: tuple[Life, ...]
    notes: tuple[bytes, ...]


@dataclasses.dataclass(frozen=True)
class View:
    """The knowledge that a process has of the others.

    Attributes:
        newest: The newest life of each island that has ever come.
        gone: Lives that are over.
        silent: Lives that have shown no sign of life for too long.
        notes: The notes of those who wait for the next roll.
    """

    newest: Mapping[int, Life]
    gone: Collection[Life] = frozenset()
    silent: Collection[Life] = frozenset()
    notes: Mapping[Life, bytes] = dataclasses.field(default_factory=dict)

    def is_over(self, life: Life) -> bool:
        """Returns whether a life is over for certain: it ended, or a replacement has come."""
        return life in self.gone or self.newest.get(life.index, life) != life

    def is_up(self, life: Life) -> bool:
        """Returns whether a life counts as up: it is not over, and it is heard of."""
        return not self.is_over(life) and life not in self.silent


def expected(last: Sheet | None, size: int, view: View) -> list[int]:
    """Returns the islands for which the next roll must still wait.

    The first roll waits for all islands. A later one waits for those on the last roll who are up. Others take part if
    they have come by then, but nobody waits for them.
    """
    if last is None:
        ready = {life.index for life in view.notes if view.is_up(life)}
        return [index for index in range(size) if index not in ready]
    return [life.index for life in last.lives if view.is_up(life) and life not in view.notes]


def next_sheet(last: Sheet | None, broken: bool, size: int, view: View) -> Sheet | None:
    """Returns the next roll; None if it must still wait for somebody, or nobody who was on the last one is up.

    Args:
        last: The last roll; None before the first.
        broken: Whether a sum of the last roll has failed: then the old connections are of no use.
        size: The number of islands.
        view: What is known.
    """
    present = sorted(life for life in view.notes if view.is_up(life))
    if expected(last, size, view) or not present:
        return None
    if last is not None and not any(life in present for life in last.lives):
        return None
    number = 1 if last is None else last.number + 1
    lives = tuple(present)
    same = last is not None and last.lives == lives and not broken
    clique = last.clique if same and last is not None else number
    return Sheet(number, clique, lives, tuple(view.notes[life] for life in lives))


def is_abandoned(last: Sheet | None, view: View) -> bool:
    """Returns whether nobody is left who was on the last roll: the state of the training is gone with them."""
    return last is not None and all(view.is_over(life) for life in last.lives)


def verdict(sheet: Sheet, ended: Mapping[int, bytes], view: View) -> bytes | None:
    """Returns whether a sum counts (`DONE`), must be repeated (`AGAIN`), or is still going on (None).

    It counts if all on the roll have its result, also those that were lost afterwards. It is repeated as soon as one of
    them has failed, or is not up and has not told that it has the result.

    Args:
        sheet: The roll.
        ended: For each index on it that has come to the end of the sum: empty, or the error.
        view: What is known.
    """
    if any(ended.values()):
        return AGAIN
    if all(life.index in ended for life in sheet.lives):
        return DONE
    lost = any(not view.is_up(life) and life.index not in ended for life in sheet.lives)
    return AGAIN if lost else None
