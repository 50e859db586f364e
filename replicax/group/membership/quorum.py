"""Pure decisions of a meeting: who is on the next roll, and whether a sum counts. No clock, no store, no sockets.

Whoever sees that a decision can be made proposes it; the store keeps the first proposal of each number. So it does not
matter that two processes see different things: one of the proposals holds for both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

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
        holders: The lives that hold the state with which the exchange begins: those on the last roll whose sums have
            not failed. At the start nobody holds one; all lives are named.
        absent: The lives that were on an earlier roll and are not on this one, each with the number of the last roll
            that it was on.
    """

    number: int
    clique: int
    lives: tuple[Life, ...]
    notes: tuple[bytes, ...]
    holders: tuple[Life, ...]
    absent: tuple[tuple[Life, int], ...] = ()

    def holders_after(self, broken: bool) -> tuple[Life, ...]:
        """Returns the lives that hold the state after this roll, given whether a sum of it has failed."""
        return self.holders if broken else self.lives

    def last_rolls(self) -> dict[Life, int]:
        """Returns the number of the last roll of each life that was on one."""
        return dict(self.absent) | dict.fromkeys(self.lives, self.number)


@dataclasses.dataclass(frozen=True)
class View:
    """The knowledge that a process has of the others.

    Attributes:
        newest: The newest life of each island that has ever come.
        gone: Lives that are over.
        silent: Lives that have shown no sign of life for too long.
        notes: For those who wait, the number of the last roll that they had seen then, and the note.
    """

    newest: Mapping[int, Life]
    gone: Collection[Life] = frozenset()
    silent: Collection[Life] = frozenset()
    notes: Mapping[Life, tuple[int, bytes]] = dataclasses.field(default_factory=dict)

    def is_over(self, life: Life) -> bool:
        """Returns whether a life is over for certain: it ended, or a replacement has come."""
        return life in self.gone or self.newest.get(life.index, life) != life

    def is_up(self, life: Life) -> bool:
        """Returns whether a life counts as up: it is not over, and it is heard of."""
        return not self.is_over(life) and life not in self.silent

    def ready(self, last: Sheet | None) -> dict[Life, bytes]:
        """Returns the notes for the roll after `last` of those who are up.

        A roll uses the notes up: one that was written before the last roll of its life is of no use any more.
        """
        used = last.last_rolls() if last is not None else {}
        notes = self.notes.items()
        return {life: note for life, (seen, note) in notes if self.is_up(life) and seen >= used.get(life, 0)}


def expected(last: Sheet | None, broken: bool, size: int, view: View, only_holders: bool = False) -> list[int]:
    """Returns the islands for which the next roll must still wait.

    The first roll waits for all islands. A later one waits for those on the last roll, and those who hold the state, if
    they are up. Others take part if they have come by then, but nobody waits for them.

    Args:
        last: The last roll; None before the first.
        broken: Whether a sum of the last roll has failed.
        size: The number of islands.
        view: What is known.
        only_holders: Whether it waits for those only who hold the state.
    """
    ready = view.ready(last)
    if last is None:
        return [index for index in range(size) if index not in {life.index for life in ready}]
    awaited = {*last.holders_after(broken), *(() if only_holders else last.lives)}
    return sorted(life.index for life in awaited if view.is_up(life) and life not in ready)


#: Returns whether a roll takes a life with some note that does not hold the state, given the notes of those that do.
Admits = Callable[[Mapping[Life, bytes], bytes], bool]


def next_sheet(
    last: Sheet | None, broken: bool, size: int, view: View, renews: bool = False, admits: Admits | None = None
) -> Sheet | None:
    """Returns the next roll; None if it must still wait for somebody, or nobody who holds the state is up.

    Args:
        last: The last roll; None before the first.
        broken: Whether a sum of the last roll has failed: then the old connections are of no use.
        size: The number of islands.
        view: What is known.
        renews: Whether each roll has connections of its own.
        admits: Whom a roll takes besides those that hold the state; None for all who have come.
    """
    ready = view.ready(last)
    if expected(last, broken, size, view, admits is not None):
        return None
    holders = last.holders_after(broken) if last is not None else tuple(sorted(ready))
    held = {life: note for life, note in ready.items() if life in holders}
    lives = tuple(sorted(life for life in ready if life in held or admits is None or admits(held, ready[life])))
    if not lives:
        return None
    notes = tuple(ready[life] for life in lives)
    if last is None:
        return Sheet(1, 1, lives, notes, lives)
    if not set(holders) & set(lives):
        return None
    number = last.number + 1
    clique = last.clique if last.lives == lives and not broken and not renews else number
    absent = [(life, on) for life, on in last.last_rolls().items() if life not in lives and not view.is_over(life)]
    return Sheet(number, clique, lives, notes, holders, tuple(absent))


def is_abandoned(last: Sheet | None, broken: bool | None, view: View) -> bool:
    """Returns whether the state of the training is gone with those who held it.

    Args:
        last: The last roll; None before the first.
        broken: Whether a sum of it has failed; None if that is not known.
        view: What is known.
    """
    if last is None:
        return False
    holders = {*last.lives, *last.holders} if broken is None else {*last.holders_after(broken)}
    return all(view.is_over(life) for life in holders)


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
