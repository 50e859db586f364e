"""Names of JAX in whose places functions of ours stand for a while.

JAX has no hook for what these functions have to do in replicas. So ours stand in their places while some thread runs a
user's function there, and no longer: elsewhere JAX is as its authors made it. Other threads may call ours meanwhile, so
each asks the context whether it runs in a replica, and is JAX's own function if it does not.
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
        """Returns what stands there."""
        return self.owner[self.name] if isinstance(self.owner, dict) else getattr(self.owner, self.name)

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
