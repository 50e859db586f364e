"""Starts the tasks of a plan as processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from replicax.checks.environment_names import LIFE
from replicax.job.plan import Job, Plan
from replicax.job.processes.events import Event, Events
from replicax.job.processes.outlets import outlets_to
from replicax.job.processes.output import Log
from replicax.job.processes.processes import Process
from replicax.job.processes.reaper import Guard
from replicax.job.processes.task import PlannedTask, Program
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.elastic_policy import ElasticPolicy
from replicax.job.supervision.supervisor import Grace, Supervisor


def supervisor_of(
    plan: Plan,
    job: Job,
    log_dir: Path,
    terminal: Terminal,
    guard: Guard,
    events: Events[Event],
    members: Callable[[Callable[[PlannedTask], Process]], ElasticPolicy] | None = None,
) -> Supervisor:
    """Returns the supervisor of one attempt; `members` makes the policy for tasks whose loss the others can bear."""
    options = job.options
    program = Program("module" if options.module else "file", options.script, options.arguments)

    def start() -> Iterator[Process]:
        for number, task in enumerate(plan.tasks):
            log = Log(log_dir / task.log_name, plan.attempt)
            process = Process(task, program, outlets_to(terminal, log, number, task), events, guard)
            if loss_policy is not None:
                loss_policy.started(process)
            yield process

    def start_again(task: PlannedTask) -> Process:
        number = [each.name for each in plan.tasks].index(task.name)
        log = Log(log_dir / task.log_name, int(task.environment[LIFE]))
        return Process(task, program, outlets_to(terminal, log, number, task), events, guard)

    grace = Grace(options.grace_of_survivors, options.grace_of_all)
    loss_policy = None if members is None else members(start_again)
    return Supervisor(plan.workers, start, grace, terminal, events, loss_policy)
