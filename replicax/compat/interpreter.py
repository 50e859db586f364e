"""The moment when a script has ended and Python still works as usual; private in CPython 3.11 to 3.14.

`concurrent.futures` uses the same call to shut down its pools. Python calls the functions in reverse order, so what is
registered here, after these pools, runs while they still take work. When the name goes, a thread that waits for
`threading.main_thread()` to end does the same, if it is started before the first pool.
"""

from __future__ import annotations

import concurrent.futures.process
import concurrent.futures.thread  # noqa: F401 - Both register their own functions when they are imported.
import sys
import threading
from collections.abc import Callable

#: Whether threads and pools of threads can be started then. Python 3.12.0 to 3.12.2 refuse it.
STARTS_THREADS_AT_END = not (3, 12, 0) <= sys.version_info[:3] < (3, 12, 3)


def call_when_script_ends(call: Callable[[], object]) -> None:
    """Registers a function that the main thread calls when the script has ended, before any pool of threads does."""
    # RuntimeError if the script has ended already.
    threading._register_atexit(call)  # type: ignore[attr-defined]
