"""Names of JAX and flax in whose places something of ours stands for a while.

These libraries have no hooks for what has to happen in replicas, and with modules from outside of a trace. So functions
and slots of ours stand in the places of theirs while some thread runs a user's function, and no longer: elsewhere the
libraries are as their authors made them. Other threads may come by ours meanwhile, so each asks the context whether it
is meant, and is the library's own if it is not.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple


class Name(NamedTuple):
    """A name in a module or object, or a key of a dict, and what makes the replacement of what stands there."""

    owner: Any
    name: Any
    wrap: Callable[[Any], Any]

    def get(self) -> Any:
        """Returns what stands there: of a class the slot or property itself."""
        held = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return held[self.name] if self.name in held else getattr(self.owner, self.name)

    def set(self, value: Any) -> None:
        """Puts something there."""
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


class Replaced:
    """Some names, replaced while somebody asks for it: `with replaced(): ...`."""

    def __init__(self, find: Callable[[], Iterable[Name]]):
        self._find = find
        self._lock = threading.RLock()
        self._askers: weakref.WeakSet[_Asker] = weakref.WeakSet()  # Weak: an interrupt may keep one from leaving.
        self._names: list[Name] | None = None  # once somebody has asked
        self._pairs: dict[int, tuple[Any, Any]] = {}  # by position: what stood there last, and ours

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        asker = _Asker()
        try:
            # On one line: see `runtime/turns.py`.
            with self._lock: self._on(asker)  # noqa: E701  # fmt: skip
            yield
        finally:
            with self._lock: self._off(asker)  # noqa: E701  # fmt: skip

    def _on(self, asker: _Asker) -> None:
        self._askers.add(asker)
        if self._names is None:
            self._names = list(self._find())
        # Also where they are on: an interrupt may have left them half on.
        for i, each in enumerate(self._names):
            now = each.get()
            original, ours = self._pairs.get(i, (None, None))
            if now is ours:
                continue
            if now is not original:
                ours = each.wrap(now)
                self._pairs[i] = now, ours
            each.set(ours)

    def _off(self, asker: _Asker) -> None:
        self._askers.discard(asker)
        if self._askers:
            return
        for i, (original, ours) in self._pairs.items():
            assert self._names is not None
            if self._names[i].get() is ours:  # Else somebody else has put something there meanwhile.
                self._names[i].set(original)


class _Asker:
    """One `with` block."""
