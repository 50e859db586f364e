"""The membership of an elastic job, read from the log that the launcher writes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from replicax.group.membership.membership_log import NAME


class Run(NamedTuple):
    """One run of a worker; its replacement has the same index and another life."""

    worker: int
    life: int  # counts the runs of this worker, from 0
    pid: int


class SeenWorld(NamedTuple):
    """A world, as the log shows it."""

    number: int
    members: tuple[int, ...]  # the indices of its workers
    time: float  # when it began, in seconds since 1970


class Membership(NamedTuple):
    """The runs of all workers, and the worlds."""

    running: dict[int, Run]  # by worker
    ended: dict[Run, int | None]  # exit codes; None where unknown
    runs: tuple[Run, ...]  # in the order in which they began
    worlds: tuple[SeenWorld, ...]

    @property
    def present(self) -> tuple[int, ...]:
        """The workers of the present world; empty before the first one."""
        return self.worlds[-1].members if self.worlds else ()

    @classmethod
    def read(cls, log_dir: Path) -> Membership:
        """Reads the log in a folder; a line that is not yet whole is left out."""
        path = log_dir / NAME
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return cls.of(json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("}\n"))

    @classmethod
    def of(cls, events: Iterable[dict[str, object]]) -> Membership:
        """Returns the membership after some events of the log."""
        running: dict[int, Run] = {}
        ended: dict[Run, int | None] = {}
        runs: list[Run] = []
        worlds: list[SeenWorld] = []
        for event in events:
            if event["event"] == "start":
                run = _run(event)
                runs.append(run)
                running[run.worker] = run
            elif event["event"] == "end":
                run, code = _run(event), event["code"]
                assert code is None or isinstance(code, int)
                ended[run] = code
                if running.get(run.worker) == run:
                    del running[run.worker]
            elif event["event"] == "world":
                number, members, time = event["number"], event["members"], event["time"]
                assert isinstance(number, int) and isinstance(members, list) and isinstance(time, (int, float))
                worlds.append(SeenWorld(number, tuple(members), time))
        return cls(running, ended, tuple(runs), tuple(worlds))


def _run(event: dict[str, object]) -> Run:
    worker, life, pid = event["worker"], event["life"], event["pid"]
    assert isinstance(worker, int) and isinstance(life, int) and isinstance(pid, int)
    return Run(worker, life, pid)
