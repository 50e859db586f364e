"""Reads the logs of an elastic job, and says what they prove: no row lost, no two groups, how long each fault took."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from replicax.testing.elastic_job import Membership, Run
from tests.soak.elastic_training import counts_after, rows_of

_FILES = "rows-*.jsonl"
_TAIL_BYTES = 4096  # more than two lines


@dataclasses.dataclass(frozen=True)
class Line:
    """A step that a run of a worker has completed.

    Attributes:
        time: When, in seconds since 1970.
        run: The run.
        step: Its number, from 0.
        world: The number of the world.
        members: The workers of the world.
        own: The ids of the rows that the worker has computed.
        rows: The ids of the rows that all have computed together.
        threads: The number of threads of the process.
        memory_mib: Its memory.
    """

    time: float
    run: Run
    step: int
    world: int
    members: tuple[int, ...]
    own: tuple[int, ...]
    rows: tuple[int, ...]
    threads: int = 0
    memory_mib: int = 0


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault that has struck.

    Attributes:
        kind: `"kill"`, `"stop"`, `"cut"`, `"preempt"` or `"node"`.
        moment: When it came: `"start"`, `"steady"`, `"two"`, `"recovery"`, `"join"` or `"end"`.
        run: The run of the worker that it struck.
        time: When, in seconds since 1970.
    """

    kind: str
    moment: str
    run: Run
    time: float


def read_lines(folder: Path) -> list[Line]:
    """Returns the lines of all runs, by time; those that a death has cut off are left out."""
    texts = (text for path in folder.glob(_FILES) for text in path.read_text().splitlines(keepends=True))
    return sorted(map(_line, filter(_is_whole, texts)), key=lambda line: line.time)


def read_last(folder: Path) -> dict[int, Line]:
    """Returns the last line of each worker, over all its runs."""
    found: dict[int, Line] = {}
    for path in folder.glob(_FILES):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            whole = list(filter(_is_whole, file.read().decode(errors="replace").splitlines(keepends=True)))
        line = _line(whole[-1]) if whole and whole[-1].startswith("{") else None
        if line and (line.run.worker not in found or line.time > found[line.run.worker].time):
            found[line.run.worker] = line
    return found


def _is_whole(text: str) -> bool:
    return text.endswith("}\n")


def _line(text: str) -> Line:
    told = json.loads(text)
    members, own, rows = (tuple(told[name]) for name in ("members", "own", "rows"))
    return Line(
        told["time"],
        Run(*told["run"]),
        told["step"],
        told["world"],
        members,
        own,
        rows,
        told["threads"],
        told["memory_mib"],
    )


def wrong_rows(lines: Iterable[Line], counts: Sequence[Iterable[int]], steps: int, fit: bool = False) -> list[str]:
    """Returns what is wrong with the rows: in a line, between the steps of a run, or in the state at the end.

    Args:
        lines: Those of all runs.
        counts: For each worker at the end how often each row counted.
        steps: The number of steps of the job.
        fit: Whether it trains with `fit`.
    """
    wrong, last = [], dict[Run, int]()
    completed, computed = set[int](), defaultdict[tuple[int, int], set[int]](set)
    for line in lines:
        if sorted(line.rows) != sorted(rows_of(line.step, fit)):
            wrong.append(f"step {line.step} of {line.run} in world {line.world}: {len(line.rows)} rows, or others")
        before = computed[line.step, line.world]
        if before & {*line.own} or not {*line.own} <= {*line.rows}:
            wrong.append(f"step {line.step} of {line.run} in world {line.world}: rows of another worker")
        before |= {*line.own}
        if line.run in last and line.step != last[line.run] + 1:
            wrong.append(f"{line.run}: step {line.step} follows step {last[line.run]}")
        last[line.run] = line.step
        completed.add(line.step)
    wrong += [f"nobody has completed step {step}" for step in sorted(set(range(steps)) - completed)]
    wrong += [f"step {step} is behind the end" for step in sorted(completed - set(range(steps)))]
    expected = counts_after(steps, fit)
    wrong += [f"worker {i} at the end: other counts" for i, each in enumerate(counts) if list(each) != list(expected)]
    return wrong


def split_brains(lines: Iterable[Line]) -> list[str]:
    """Returns the worlds that two groups have had, and the steps that two worlds have both gone on from.

    A world may complete one step that a later one repeats: if all who have completed it are lost with it.
    """
    members: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    runs: dict[tuple[int, int], set[Run]] = defaultdict(set)  # of a world and a worker
    steps: dict[int, list[int]] = defaultdict(list)
    for line in lines:
        members[line.world].add(line.members)
        runs[line.world, line.run.worker].add(line.run)
        steps[line.world].append(line.step)
    found = [f"world {world} with members {sorted(each)}" for world, each in members.items() if len(each) > 1]
    found += [f"world {w}: two runs of worker {i}" for (w, i), each in runs.items() if len(each) > 1]
    worlds = sorted(steps)
    for old, new in itertools.pairwise(worlds):
        if max(steps[old]) > min(steps[new]):
            found.append(f"world {old} ended at step {max(steps[old])}, world {new} began at {min(steps[new])}")
    return found


_SECONDS_TO_STRIKE = 1.0  # A step of the struck run may still end meanwhile.


def recovery_s(fault: Fault, lines: Sequence[Line], faults: Sequence[Fault]) -> float | None:
    """Returns the seconds from a fault to the next step that a survivor completed without the struck run.

    One that was stopped or cut off may come back before it is missed: until its own next step, then.

    Args:
        fault: The fault.
        lines: Those of all runs, by time.
        faults: All faults.

    Returns:
        None if the run was in no world, so that nobody had to recover, or if no such step came.
    """
    struck = {each.run for each in faults if each.time <= fault.time + 0.001}
    seen = {(line.world, line.run.worker): line.run for line in lines}
    own = fault.run
    if own not in seen.values():
        return None
    for line in lines:
        is_back = line.run == own and fault.kind in ("stop", "cut") and line.time > fault.time + _SECONDS_TO_STRIKE
        if is_back:
            return line.time - fault.time
        if line.time <= fault.time or line.run in struck:
            continue
        if own.worker not in line.members or seen.get((line.world, own.worker), own) != own:
            return line.time - fault.time
    return None


def grown(lines: Iterable[Line]) -> tuple[float, float]:
    """Returns how many threads and MiB the run that was in most worlds has more with each world, after its third."""
    by_run: dict[Run, dict[int, Line]] = defaultdict(dict)
    for line in lines:
        by_run[line.run][line.world] = line  # the last one of each world
    worlds = max(by_run.values(), key=len, default={})
    if len(worlds) < 4:
        return 0.0, 0.0
    *_, last = worlds.values()
    third, more = [*worlds.values()][2], len(worlds) - 3
    return (last.threads - third.threads) / more, (last.memory_mib - third.memory_mib) / more


def waited_s(fault: Fault, seconds: float, faults: Sequence[Fault], stall_s: float) -> float:
    """Returns how many of the seconds after a fault the others had to wait for one that was stopped or cut off.

    Args:
        fault: The fault.
        seconds: How long the recovery took.
        faults: All faults: another one at the same time may be one of these, or one shortly before or after.
        stall_s: After how many seconds without a sign of life a worker counts as lost.
    """
    begun = [each.time for each in faults if each.kind in ("stop", "cut") and each.time < fault.time + seconds]
    ended = [min(time + stall_s, fault.time + seconds) for time in begun]
    waits = [end - max(time, fault.time) for time, end in zip(begun, ended, strict=True)]
    return max(0.0, min(stall_s, max(waits, default=0.0)))


def strangers_lost(membership: Membership, faults: Sequence[Fault], lines: Sequence[Line]) -> list[Run]:
    """Returns the runs of members that have ended although no fault had struck them: none, if survivors survive."""
    unharmed = {line.run for line in lines} - {fault.run for fault in faults}
    return [run for run, code in membership.ended.items() if code != 0 and run in unharmed]
