"""What Python does in a piece of code, counted: seconds depend on the machine, and on what else it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def calls_in(run: Callable[[], object]) -> int:
    """Returns how many calls of Python functions `run` takes, itself included."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count
