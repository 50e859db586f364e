"""A queue as a value: each change returns another queue, and takes the same time however long it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_Cell = tuple[T, "_Cell[T] | None"]  # an item and those after it


@dataclasses.dataclass(frozen=True)
class Fifo(Generic[T]):
    """An immutable queue.

    Items leave from the head of `front`. When that is empty, `back`, which holds the newest item first, is reversed
    once to become the next `front`.

    Example:
        >>> queue = Fifo().append("b").append("c").push_front("a")
        >>> item, rest = queue.pop()
        >>> item, list(rest), len(queue)
        ('a', ['b', 'c'], 3)
    """

    front: _Cell[T] | None = None
    back: _Cell[T] | None = None
    length: int = 0

    def append(self, item: T) -> Fifo[T]:
        """Returns the queue with another item at its end."""
        return Fifo(self.front, (item, self.back), self.length + 1)

    def push_front(self, item: T) -> Fifo[T]:
        """Returns the queue with another item at its head."""
        return Fifo((item, self.front), self.back, self.length + 1)

    def pop(self) -> tuple[T, Fifo[T]]:
        """Returns the item at the head, and the queue without it."""
        front, back = self.front, self.back
        if front is None:
            front, back = _cells(_items(back)), None
        if front is None:
            raise IndexError("pop from an empty queue")
        item, rest = front
        return item, Fifo(rest, back, self.length - 1)

    def without(self, item: T) -> Fifo[T]:
        """Returns the queue without the items equal to `item`."""
        left = [each for each in self if each != item]
        return Fifo(_cells(reversed(left)), None, len(left))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        yield from _items(self.front)
        yield from reversed(list(_items(self.back)))


def _items(cell: _Cell[T] | None) -> Iterator[T]:
    while cell is not None:
        item, cell = cell
        yield item


def _cells(items: Iterable[T]) -> _Cell[T] | None:
    """Returns cells with the last of these items first."""
    cell: _Cell[T] | None = None
    for item in items:
        cell = (item, cell)
    return cell
