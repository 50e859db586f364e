"""A profile of one step that stays in memory, and how much of it the devices of this process computed themselves.

JAX's own functions for profiles write files, and take the time for that. Guard: tests/compat/test_jax_profiles.py.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax._src import profiler as jax_profiler
from jax._src.lib import _profiler

# An operation has the name of the primitive that made it, or that of XLA's operation, or of NCCL's kernel.
_COLLECTIVE = re.compile(
    r"all.?reduce|all.?gather|reduce.?scatter|psum|pmax|pmin|permute|all.?to.?all|collective|nccl", re.I
)
_OPERATION = "hlo_op"
_DEVICE = "/device:"


def begun() -> Any:
    """Begins a profile and returns it, for `ended`; None if the user's own is being made."""
    # Without the names: no step is profiled, and nobody who is slow inside of a step is found.
    state = vars(jax_profiler._profile_state)
    if state.get("session", state.get("profile_session")) is not None:  # the latter before JAX 0.12
        return None
    options = _profiler.ProfileOptions()
    options.python_tracer_level = 0
    return _profiler.ProfilerSession(options)


def ended(session: Any) -> bytes:
    """Ends a profile; returns its data."""
    found: bytes = session.stop()
    return found


def own_seconds(profile: bytes, devices: int) -> float | None:
    """Returns how many seconds of a profiled step this process computed itself; None if no operation was seen."""
    # On devices of their own, that is the time of all operations but collectives, of the device that took most. CPUs of
    # one process share threads, and a loop there is an operation with others inside: it is the step's time without
    # that in which all of them are in a collective.
    host, own = [], []
    with warnings.catch_warnings():
        # Of types of jaxlib 0.12 without `__module__`. As an error (`python -W error`) it ends the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        for plane in jax.profiler.ProfileData.from_serialized_xspace(profile).planes:
            found = [
                (event.start_ns, event.start_ns + event.duration_ns, is_collective(event.name, dict(event.stats)))
                for line in plane.lines
                for event in line.events
                if _is_operation(event)
            ]
            if plane.name.startswith(_DEVICE):
                own.append(_length((begin, end) for begin, end, collective in found if not collective))
            else:
                host += found
    seconds = [*own, *([_outside_of_collectives(host, devices)] if host else [])]
    return max(seconds) / 1e9 if seconds else None


def is_collective(name: str, stats: dict[str, Any]) -> bool:
    """Returns whether an operation of a profile is a collective."""
    return bool(_COLLECTIVE.search(name) or _COLLECTIVE.search(str(stats[_OPERATION])))


def _is_operation(event: Any) -> bool:
    return any(name == _OPERATION for name, _ in event.stats)


def _length(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _outside_of_collectives(operations: Sequence[tuple[float, float, bool]], devices: int) -> float:
    """Returns the time from the first operation to the last, without that in which all `devices` are in collectives."""
    whole = max(end for _, end, _ in operations) - min(begin for begin, _, _ in operations)
    changes = sorted(
        change for begin, end, collective in operations if collective for change in ((begin, 1), (end, -1))
    )
    waited, running, since = 0.0, 0, 0.0
    for at, change in changes:
        if running >= devices:
            waited += at - since
        running, since = running + change, at
    return whole - waited
