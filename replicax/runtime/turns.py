"""Turns: threads that use the same devices and variables take turns.

A program overwrites the buffers of the variables that it assigns, so no thread may read a variable between the start of
the program and the moment at which its new values are stored. Devices that run programs together must all get them in
the same order. So only one thread at a time dispatches; its programs run while other threads go on.

There are two locks, always taken in this order:

- `of_thread()`, for a program from its start until its results are stored. If the program calls functions of the host,
  its thread waits for them meanwhile. XLA's threads that call these functions take no lock: they would wait for the
  program that waits for them.
- `DISPATCH`, for steps that belong together. No thread holds it while a program that calls the host runs in another
  one, and a thread that holds it calls no user's function.

A thread takes neither while it traces a function, since it holds the lock of that function's programs then. A thread
that holds one reads no variable on a parameter server: the read may wait for the recovery of a lost server, which needs
turns itself.

The `with` statements stand on one line with their bodies. Python takes and releases a lock without looking for signals
in between, but a debugger or tracer could raise an error at the last line of a longer block.
"""

from __future__ import annotations

import contextlib
import threading
from contextlib import AbstractContextManager

DISPATCH = threading.RLock()
_THREADS = threading.RLock()
_PASSING: AbstractContextManager[object] = contextlib.nullcontext()


def of_thread() -> AbstractContextManager[object]:
    """Returns the lock of the threads that run programs; one that locks nothing in a thread not started by Python."""
    return _PASSING if is_foreign() else _THREADS


def is_foreign() -> bool:
    """Returns whether Python has not started this thread, such as those of XLA that call functions of the host."""
    return isinstance(threading.current_thread(), threading._DummyThread)
