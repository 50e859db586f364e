"""Calls of checkpoints where workers come and go: all make them together, like a step of the training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

import replicax.contracts.worlds as worlds
from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.places import Place

_T = TypeVar("_T")


def coordinated(name: str, timeout_s: float, call: Callable[[Coordination], _T], alone: Callable[[], _T]) -> _T:
    """Returns what `call` returns, which all workers make together; it may be made again, so it changes nothing."""
    running = worlds.running()
    if running is None or not running.is_taken_in:  # A newcomer's world is its own.
        return call(Coordination(name, timeout_s))

    # It is made again in the next world if a worker is lost meanwhile; `alone` if the others have gone on already.
    def executed() -> _T:
        return running.executed(lambda: call(Coordination(name, timeout_s)), lambda _: [], lambda _: alone())

    return running.attempt(executed)


def coordinated_text(name: str, timeout_s: float, call: Callable[[Coordination], str]) -> tuple[str, bool]:
    """Returns the text of `call`, which all workers make; and whether this one took part, or got it from another."""
    running = worlds.running()
    assert running is not None

    def told(value: tuple[str, bool]) -> list[np.ndarray]:
        return [np.frombuffer(value[0].encode(), np.uint8)]

    def executed() -> tuple[str, bool]:
        return running.executed(
            lambda: (call(Coordination(name, timeout_s)), True),
            told,
            lambda heard: (heard[0].tobytes().decode(), False),
        )

    return running.attempt(executed)


def agreed_latest(directory: Place, latest_step: Callable[[], int | None], timeout_s: float) -> int | None:
    """Returns the newest step of a folder as the chief sees it; all processes call this together."""

    def look(coordination: Coordination) -> int | None:
        coordination.check_same("directory", str(directory))
        latest = latest_step() if coordination.is_chief else None
        said = coordination.from_chief("latest step", "" if latest is None else str(latest))
        return int(said) if said else None

    return coordinated(f"Looking for the newest checkpoint in {directory}", timeout_s, look, latest_step)
