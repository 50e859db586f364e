"""Turns: threads that use the same devices and variables do so one after the other.

A program overwrites the buffers of the variables that it assigns, so nobody may look at a variable between its start
and the moment at which its new values are stored. And devices that run one program together must all be given their
programs in one order. So only one thread at a time dispatches; what it has dispatched runs while others go on.

There are two locks, always taken in this order:

- `of_thread()`, for a program from its start until its results are stored. A program that calls functions of the host
  is waited for in between: the threads in which XLA calls these functions pass by, as they would wait for themselves.
- `DISPATCH`, for what must not be torn apart. It is never held while a program that calls the host runs elsewhere, and
  a thread that holds it calls no user's function.

Neither is taken while a function is being traced, which holds the lock of its own programs; and nobody who has one
reads a variable that lives on servers: the recovery of a lost server, which that may wait for, needs turns itself.

The `with` statements that take them stand on one line with their bodies: Python takes and releases a lock without
looking for signals in between, but a debugger or tracer could raise at the line on which a longer block ends.
"""

from __future__ import annotations

import contextlib
import threading
from contextlib import AbstractContextManager
from typing import Any

DISPATCH = threading.RLock()
_THREADS = threading.RLock()
_PASSING: AbstractContextManager[Any] = contextlib.nullcontext()


def of_thread() -> AbstractContextManager[Any]:
    """Returns the lock of the threads that run programs; in one that Python has not started, what locks nothing."""
    return _PASSING if isinstance(threading.current_thread(), threading._DummyThread) else _THREADS
