"""The status of a worker, which it tells the others."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

from replicax.runtime.activity import WAITING_PHASES, Activity, now
from replicax.runtime.call_order import order_from


@dataclasses.dataclass(frozen=True)
class Status:
    """The status of a worker."""

    phase: str  # one of `replicax.runtime.activity`
    seconds: float = 0.0  # in the phase, without the time in which its devices still computed
    calls: int = 0  # number of the program that it began last; only programs that all workers run together count
    completed: int = 0  # number of the last program that it has finished
    waiting: float | None = None  # seconds that it has been waiting for others; None if it does not wait
    program: str = ""  # the name of that which it began last
    fingerprint: str = ""  # of that program
    ended: str = ""  # how its script ended: `"done"`, or the error; empty while it runs
    waits_at: str = ""  # what it waits for if that is not a program, such as the first values of variables
    waits_for: tuple[int, ...] = ()  # indices of the workers that it waits for; empty for all others
    quiet: float = math.inf  # seconds of waiting since bytes last flowed
    order: tuple[int, int] = (0, 0)  # number and digest of its last call (`replicax.runtime.call_order`)

    @property
    def in_vain(self) -> float | None:
        """How many seconds it has been waiting while no bytes flowed; None if it does not wait."""
        return None if self.waiting is None else min(self.waiting, self.quiet)

    def describe(self) -> str:
        if self.ended:
            return f"ended ({self.ended}), last completed step {self.completed}"
        program = f" of {self.program!r}" if self.program else ""
        waits = "" if self.waiting is None else f", waiting for {self.waiting:.1f} s"
        waits += f" at {self.waits_at!r}" if waits and self.waits_at else ""
        step = f"last completed step {self.completed}"
        if self.calls > self.completed:
            step += f", in step {self.calls}{program}"
        return f"phase {self.phase!r} for {self.seconds:.1f} s, {step}{waits}"


def status_of(activity: Activity = now, ended: str = "") -> Status:
    """Returns the status of this process."""
    phase, since = activity.at
    time_now = time.monotonic()
    wait = None if ended else activity.wait_for_others()
    waits_since, waits_at, waits_for = wait or (None, "", ())
    computes = activity.computes()
    if computes:
        activity.seen_computing = time_now
    else:  # Its devices may finish before another worker's. Its script has then just begun to do something else.
        since = max(since, activity.seen_computing)
    in_step = not ended and (phase in WAITING_PHASES or computes)
    return Status(
        phase,
        time_now - since,
        activity.calls,
        activity.calls - in_step if activity.calls else 0,
        None if waits_since is None else time_now - waits_since,
        activity.program,
        activity.fingerprint,
        ended,
        waits_at,
        waits_for,
        0.0 if waits_since is None else time_now - max(waits_since, activity.moved),
    )


def status_from(document: object) -> Status:
    """Returns a status from the JSON of another process, or raises a `ValueError`."""
    kinds: dict[str, type | tuple[type, ...]] = {
        "phase": str,
        "program": str,
        "fingerprint": str,
        "ended": str,
        "calls": int,
    }
    kinds |= {"completed": int, "seconds": (int, float), "waiting": (int, float, type(None))}
    kinds |= {"waits_at": str, "waits_for": (list, tuple), "quiet": (int, float), "order": (list, tuple)}
    if not isinstance(document, Mapping):
        raise ValueError(f"not a status: {document!r:.100}")
    found: dict[str, Any] = {name: document.get(name) for name in kinds}
    if not all(isinstance(found[name], kind) for name, kind in kinds.items()):
        raise ValueError(f"not a status: {document!r:.100}")
    if not all(isinstance(worker, int) for worker in found["waits_for"]):
        raise ValueError(f"not a status: {document!r:.100}")
    order = order_from(found["order"])
    return Status(**{**found, "waits_for": tuple(found["waits_for"]), "order": order})
