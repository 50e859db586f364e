"""The membership of an elastic job over time, read from its log."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from replicax.errors import LaunchError
from replicax.group.membership.membership_log import NAME


class Span(NamedTuple):
    """A time in which something holds for a worker: that its process runs, or that it is a member."""

    worker: int  # its index
    incarnation: int  # which run of it
    begin: float  # in seconds since 1970
    end: float
    how: str = ""  # the reason of its end; "" if it had not ended at the end of the log


class Change(NamedTuple):
    """A line of the log as a user reads it."""

    time: float  # in seconds since 1970
    world: int  # the number of the world that began; 0 if none did
    members: tuple[int, ...]  # of that world
    text: str


@dataclasses.dataclass
class History:
    """The membership of a job over time."""

    changes: list[Change] = dataclasses.field(default_factory=list)
    runs: list[Span] = dataclasses.field(default_factory=list)  # of the processes, from their starts to their ends
    memberships: list[Span] = dataclasses.field(default_factory=list)  # the times in which workers were members
    begin: float = 0.0  # of the log, in seconds since 1970
    end: float = 0.0
    most: int = 0  # workers that the job may have; 0 if the log does not say so

    @property
    def workers(self) -> list[int]:
        """The indices of all workers that were ever there, ascending."""
        return sorted({span.worker for span in (*self.runs, *self.memberships)})

    @property
    def worlds(self) -> list[Change]:
        """The worlds."""
        return [change for change in self.changes if change.world]

    def members_over_time(self) -> list[tuple[float, float, int]]:
        """Returns how many members there were: begin, end and number, for each world."""
        times = [*(world.time for world in self.worlds), self.end]
        return [(world.time, end, len(world.members)) for world, end in zip(self.worlds, times[1:], strict=True)]


def read_history(folder: Path) -> History:
    """Reads the membership log in a folder. A last line that is not whole is left out."""
    path = folder / NAME if folder.is_dir() else folder
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        if not events:
            raise ValueError("it is empty")
        return history_of(events)
    except FileNotFoundError:
        raise LaunchError(
            f"There is no {NAME} in {folder}: it is written by `replicax run --elastic MIN:MAX --log-dir {folder}`."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{path} is no membership log: {error!r}.") from error


def history_of(events: Iterable[Mapping[str, Any]]) -> History:
    """Returns the history that the lines of a log tell."""
    reader = _Reader()
    for event in events:
        reader.take(event)
    return reader.ended()


class _Reader:
    """Takes the lines of a log one after the other."""

    def __init__(self) -> None:
        self._history = History()
        self._runs: dict[tuple[int, int], float] = {}
        self._members: dict[tuple[int, int], float] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        history, time = self._history, float(event["time"])
        history.begin, history.end = history.begin or time, max(history.end, time)
        take = getattr(self, f"_take_{event['event']}", None)
        text = "" if take is None else take(event, time)
        if text:
            is_world = event["event"] == "world"
            world, members = (int(event["number"]), tuple(event["members"])) if is_world else (0, ())
            history.changes.append(Change(time, world, members, text))

    def ended(self) -> History:
        """Returns the history; what has not ended goes on to the end of the log."""
        self._end_all(self._history.end, "")
        return self._history

    def _take_job(self, event: Mapping[str, Any], time: float) -> str:
        self._end_all(time, "the job started again")
        self._history.most = int(event["most"])
        again = f"attempt {event['attempt']}: " if event["attempt"] else ""
        return f"{again}{event['workers']} worker(s) start; there may be {event['fewest']} to {event['most']}"

    def _take_start(self, event: Mapping[str, Any], time: float) -> str:
        self._runs[_incarnation(event)] = time
        place = f" on {event['host']}" if event.get("host") else ""
        again = "again " if event["life"] else ""
        return f"worker {event['worker']} starts {again}(process {event['pid']}{place})"

    def _take_leave(self, event: Mapping[str, Any], time: float) -> str:
        del time
        return f"worker {event['worker']} leaves: {event['reason']}"

    def _take_end(self, event: Mapping[str, Any], time: float) -> str:
        key, how = _incarnation(event), str(event["reason"])
        self._history.runs.append(Span(*key, self._runs.pop(key, time), time, how))
        if key in self._members:
            self._history.memberships.append(Span(*key, self._members.pop(key), time, how))
        return f"worker {event['worker']} ended: {how}"

    def _take_world(self, event: Mapping[str, Any], time: float) -> str:
        members = set(zip(event["members"], event["lives"], strict=True))
        for key in self._members.keys() - members:
            self._history.memberships.append(Span(*key, self._members.pop(key), time, "left out"))
        for key in members - self._members.keys():
            self._members[key] = time
        return str(event["why"]) or "the members have changed"

    def _take_finish(self, event: Mapping[str, Any], time: float) -> str:
        self._end_all(time, "")
        return f"the end: {event['why']}"

    def _end_all(self, time: float, how: str) -> None:
        for open_, spans in ((self._runs, self._history.runs), (self._members, self._history.memberships)):
            spans += [Span(*key, begin, time, how) for key, begin in open_.items()]
            open_.clear()


def _incarnation(event: Mapping[str, Any]) -> tuple[int, int]:
    return int(event["worker"]), int(event["life"])
