"""JAX tells of itself: how long it traces and compiles, and where a thread waits for an array.

In a task of `replicax run` this file is loaded as soon as the script imports JAX (`job/processes/child.py`), so it
imports nothing else of replicax. Guard: tests/compat/test_jax_waits.py.

Without the names of arrays: waiting for the devices counts as the user's code.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

from jax import monitoring
from jax._src import array as jax_array

_TRACE, _COMPILE = "trace", "compile"  # classes of the ledger
_KINDS = {
    "/jax/core/compile/jaxpr_trace_duration": _TRACE,
    "/jax/core/compile/jaxpr_to_mlir_module_duration": _COMPILE,
    "/jax/core/compile/backend_compile_duration": _COMPILE,
}
_MARK = "_replicax_waits"


class _Clock(Protocol):
    thread: int | None

    def waits(self) -> str: ...
    def goes_on(self, before: str) -> None: ...
    def compiled(self, kind: str, seconds: float) -> None: ...


def follow(get_clock: Callable[[], _Clock | None]) -> None:
    """Lets JAX tell the clock that `get_clock` returns, if it is that of the thread; once in a process."""
    kind: Any = jax_array.ArrayImpl
    if hasattr(kind, _MARK):
        return

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        told, clock = _KINDS.get(event), get_clock()
        if told is not None and clock is not None and clock.thread == threading.get_ident():
            clock.compiled(told, duration_secs)

    def waited(wait: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wait, assigned=("__name__", "__doc__"))
        def waiting(self: Any) -> Any:
            clock = get_clock()
            if clock is None or clock.thread != threading.get_ident() or self.is_ready():
                return wait(self)
            before = clock.waits()
            try:
                return wait(self)
            finally:
                clock.goes_on(before)

        return waiting

    monitoring.register_event_duration_secs_listener(note)
    setattr(kind, _MARK, True)
    kind._value, kind.block_until_ready = property(waited(kind._value.fget)), waited(kind.block_until_ready)
