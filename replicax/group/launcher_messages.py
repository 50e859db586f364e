"""Messages of a worker's process to the launcher that started it (`replicax run`), if there is one."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Mapping

from replicax.checks.environment_names import NEWS


def tell_launcher(told: Mapping[str, object], last: bool = False) -> bool:
    """Sends the launcher a line of JSON, for `replicax.job.processes.processes`; returns whether a launcher listens."""
    if os.environ.get(NEWS) == "":  # The script has failed before, and the launcher knows.
        return True
    process, _, news = os.environ.get(NEWS, "").partition(":")
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
    """Tells the launcher that this worker needs the others now and, when Python exits normally, that it has left."""
    if tell_launcher({"meets": processes}):
        atexit.register(tell_launcher, {"leaves": True})


def tell_of_watching(processes: int) -> None:
    """Tells the launcher that this worker watches the others from now on: it ends by itself when one is lost."""
    tell_launcher({"meets": processes, "watches": True})
