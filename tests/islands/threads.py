"""Islands that are threads of the test's process, each with virtual devices of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import replicax as rx
from tests.islands.in_process import Threads

_TIMEOUT_S = 240.0


def run_islands(body: Callable[[Any], Any], make: Callable[..., Any], islands: int = 2, devices: int = 1) -> list[Any]:
    """Returns `body(strategy)` of each island.

    Args:
        body: The training of one island.
        make: Makes its strategy, of `devices` and `meeting`.
        islands: Number of islands.
        devices: Number of devices of each.
    """
    threads, found, errors = Threads(islands, _TIMEOUT_S), [None] * islands, []

    def run(index: int) -> None:
        try:
            own = [f"cpu:{index * devices + i}" for i in range(devices)]
            found[index] = body(make(devices=own, meeting=threads.member(index)))
        except BaseException as error:
            errors.append(error)
            threads.give_up()

    running = [threading.Thread(target=run, args=(index,), name=f"island {index}") for index in range(islands)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        # Who waited for the one that has failed says only that it did.
        raise min(errors, key=lambda error: isinstance(error, rx.errors.BarrierTimeoutError))
    return found
