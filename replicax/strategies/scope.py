"""The result of `strategy.scope()`: a context manager that says so when it is used in another way than `with` does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

import replicax.context as context
from replicax.contracts.strategy import StrategyBase
from replicax.errors import ContextError

_S = TypeVar("_S", bound=StrategyBase)


class Scope(contextlib.ContextDecorator, Generic[_S]):
    """Makes a strategy the current one for one `with` block; inside that block the same object may be opened again."""

    def __init__(self, strategy: _S, entered: Callable[[Scope[_S]], contextlib.AbstractContextManager[None]]):
        self._strategy, self._entered = strategy, entered
        self._open: list[tuple[contextlib.AbstractContextManager[None], context.Context]] = []
        self._is_over = False

    def _recreate_cm(self) -> Scope[_S]:
        # As a decorator, it opens a scope of its own for each call.
        return Scope(self._strategy, self._entered)

    def __enter__(self) -> _S:
        """Opens the scope and returns the strategy."""
        if self._is_over:
            raise ContextError(
                f"This scope of {self._strategy!r} was opened and closed before. A scope object is for one `with` "
                "block: call strategy.scope() for each."
            )
        manager = self._entered(self)
        manager.__enter__()
        self._open.append((manager, context.current()))
        return self._strategy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._open:
            raise ContextError(
                f"A scope of {self._strategy!r} was closed that is not open. Use it in a `with` statement."
            )
        _, installed = self._open[-1]
        if error is not None:
            self._close_inner(installed)
        elif context.current() is not installed:
            raise ContextError(
                f"A scope of {self._strategy!r} was closed while {context.current().strategy!r} is current, by what "
                "was opened inside it (or in another thread). Close scopes in the thread that opened them, the inner "
                "one first, as nested `with` statements do."
            )
        self._close(kind, error, trace)

    def _close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        manager, _ = self._open.pop()
        self._is_over = not self._open
        manager.__exit__(kind, error, trace)

    def _close_inner(self, installed: context.Context) -> None:
        """Closes what was opened inside, since the block has ended with an error before that was done."""
        inner = context.current().scope
        while context.current() is not installed and isinstance(inner, Scope) and inner is not self:
            inner._close()
            inner = context.current().scope
