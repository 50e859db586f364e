"""Where the output of a job's tasks goes: to one terminal, and perhaps to a log for each."""

from __future__ import annotations

from replicax.job.processes.output import LogLike, Stream
from replicax.job.processes.processes import Outlets
from replicax.job.processes.task import PlannedTask
from replicax.job.processes.terminal import Terminal


def outlets_to(terminal: Terminal, log: LogLike, number: int, task: PlannedTask) -> Outlets:
    """Returns where the output of a task goes; progress bars are those of the first task."""
    size = terminal.bar_size(task.name) if number == 0 and terminal.shows_bars else None
    streams = Stream(terminal, task.name, number, False), Stream(terminal, task.name, number, True)
    return Outlets(streams, log, size)
