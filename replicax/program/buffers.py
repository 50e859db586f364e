"""Who holds a buffer: a program may overwrite only what nobody else can see."""

from __future__ import annotations

import functools
import sys
from typing import Any


def holders(value: Any) -> int:
    """Returns how many references there are to `value`, those of this call aside."""
    return sys.getrefcount(value) - _references_of_a_call()


@functools.cache
def _references_of_a_call() -> int:
    """Returns by how much `sys.getrefcount` in a function exceeds the holders of its argument (Pythons differ)."""
    holder = _Holder()
    return _count(holder.value) - 1


def _count(value: Any) -> int:
    return sys.getrefcount(value)


class _Holder:
    def __init__(self) -> None:
        self.value = object()
