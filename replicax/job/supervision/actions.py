"""The actions that `machine.next_state` returns: things to be done in an attempt at a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from replicax.contracts.group import Incarnation
from replicax.job.processes.events import TaskRun


class Say(NamedTuple):
    """Tell the user."""

    text: str


class ShowWords(NamedTuple):
    """Show the user the last words of a task, and where its log is."""

    log_path: Path | None
    words: str


class Send(NamedTuple):
    """Send a task a signal."""

    task: TaskRun
    number: int


class Kill(NamedTuple):
    """Kill a task and all processes that it started."""

    task: TaskRun


class StartAgain(NamedTuple):
    """Start a task once more, in the place of one that was lost."""

    task: TaskRun


class TellEnd(NamedTuple):
    """Tell all workers that one is over."""

    incarnation: Incarnation


class TellEnding(NamedTuple):
    """Tell all workers that the whole job is to end: nobody leaves alone."""


class Log(NamedTuple):
    """Write a line to the membership log."""

    event: str  # a method of `MembershipLog`
    arguments: tuple[Any, ...]


Action: TypeAlias = Say | ShowWords | Send | Kill | StartAgain | TellEnd | TellEnding | Log
