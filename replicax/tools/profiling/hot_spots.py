"""The operations of a trace that took the most time."""

from __future__ import annotations

import collections
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from replicax.errors import LaunchError

_TRACE = "perfetto_trace.json.gz"
INPUT = "input.txt"  # Beside the trace: whether the script waited for its input.


class HotSpot(NamedTuple):
    """An operation of a compiled program, over all steps and devices of a trace."""

    program: str  # such as "jit_step"
    operation: str  # as XLA calls it, such as "dot.3"
    calls: int
    seconds: float  # in all; operations of different devices and threads run at once
    share: float  # of the time of all operations, from 0 to 1


def traces(folder: Path) -> dict[str, Path]:
    """Returns the trace of each worker by its name, such as `"worker-0"`; Perfetto opens these files."""
    found = {path.relative_to(folder).parts[0]: path for path in sorted(folder.rglob(_TRACE))}
    return dict(sorted(found.items()))


def hot_spots(trace: Path, most: int = 10) -> list[HotSpot]:
    """Returns the operations of a worker's trace that took the most time, the longest first."""
    seconds: collections.Counter[tuple[str, str]] = collections.Counter()
    calls: collections.Counter[tuple[str, str]] = collections.Counter()
    for event in _operations(trace):
        key = event["args"].get("hlo_module", ""), event["args"]["hlo_op"]
        seconds[key] += event.get("dur", 0.0) / 1e6
        calls[key] += 1
    total = sum(seconds.values()) or 1.0
    return [HotSpot(*key, calls[key], taken, taken / total) for key, taken in seconds.most_common(most)]


def _operations(trace: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(trace, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{trace} is no trace of JAX's profiler: {error!r:.200}.") from error
    for event in events:
        if event.get("ph") == "X" and "hlo_op" in (event.get("args") or {}):
            yield event
