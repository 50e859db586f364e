"""What a worker's process tells the launcher that started it (`replicax run`), if there is one."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Mapping
from typing import Any

_NEWS = "REPLICAX_NEWS"  # where the launcher listens: the process that may tell it something, and a file descriptor


def tell_launcher(told: Mapping[str, Any], last: bool = False) -> bool:
    """Tells the launcher something, as a line of JSON; returns whether there is one that listens.

    Args:
        told: What `replicax.launch.processes` understands.
        last: Whether nothing comes after it.
    """
    if os.environ.get(_NEWS) == "":  # The script has failed before, and the launcher knows.
        return True
    process, _, news = os.environ.get(_NEWS, "").partition(":")
    if process != str(os.getpid()):
        return False
    message = f"{json.dumps(told)}\n".encode()
    try:
        while message:
            message = message[os.write(int(news), message) :]
        if last:
            os.close(int(news))
    except OSError:  # The launcher is gone.
        return False
    return True


def tell_of_meeting(processes: int) -> None:
    """Tells the launcher that this worker now needs the others, and, when Python ends in order, that it has left them.

    Args:
        processes: How many workers meet.
    """
    if tell_launcher({"meets": processes}):
        atexit.register(tell_launcher, {"leaves": True})
