"""An attempt at a job as the machine sees it, without processes: what happens is told, and what is decided is kept."""

from __future__ import annotations

from typing import Any

from replicax.contracts.group import Incarnation
from replicax.group.membership.launcher_news import ElasticRange
from replicax.job.options import Options
from replicax.job.processes.events import MemberNews, Started, TaskRun
from replicax.job.supervision.actions import Action, Kill, Say, StartAgain
from replicax.job.supervision.machine import next_state
from replicax.job.supervision.run_job import JobPolicy
from replicax.job.supervision.state import Ended, Event, JobState, Tick

PID = 4


def worker(index: int, life: int = 0) -> TaskRun:
    """A run of a worker."""
    return TaskRun("worker", index, life)


class Attempt:
    """An attempt whose tasks have been started."""

    def __init__(self, *more: TaskRun, **options: Any):
        wanted = Options("train.py", **{"workers": 3, **options})
        policy = JobPolicy.of(wanted)
        self.now, self.actions = 100.0, list[Action]()
        self.state = JobState(policy.workers, policy.losses, policy.grace, policy.patience)
        for run in (*map(worker, range(wanted.workers)), *more):
            self.tell(Started(run, PID))

    def tell(self, event: Event) -> list[Action]:
        """Tells the machine of an event, and of the tasks that it has started again; returns what it has decided."""
        self.state, decided = next_state(self.state.at(self.now), event)
        found = list(decided)
        for action in decided:
            if isinstance(action, StartAgain):
                found += self.tell(Started(action.task, PID))
        self.actions += decided
        return found

    def wait(self, seconds: float) -> list[Action]:
        """Lets time pass."""
        self.now += seconds
        return self.tell(Tick())

    def lose(self, run: TaskRun, code: int = 137, words: str = "", **known: Any) -> list[Action]:
        """Lets a process end."""
        return self.tell(Ended(run, self.now, code, words=words, **known))

    def meet(self, number: int, *incarnations: tuple[int, int]) -> list[Action]:
        """Lets the first of some incarnations tell of a world of them all."""
        return self.tell(MemberNews(worker(*incarnations[0]), number, incarnations))

    @property
    def said(self) -> str:
        """All that the user was told."""
        return "\n".join(action.text for action in self.actions if isinstance(action, Say))

    @property
    def killed(self) -> list[TaskRun]:
        """The tasks that were killed."""
        return [action.task for action in self.actions if isinstance(action, Kill)]


def again(actions: list[Action]) -> list[TaskRun]:
    """The tasks that some actions start again."""
    return [action.task for action in actions if isinstance(action, StartAgain)]


def elastic(fewest: int = 1, most: int = 4, **options: Any) -> Attempt:
    """An elastic job."""
    return Attempt(elastic=ElasticRange(fewest, most), **{"restarts": 2, **options})


def began(**options: Any) -> Attempt:
    """An elastic job whose workers 0, 1 and 2 have worked together for a minute."""
    job = elastic(**options)
    job.now += 60
    job.meet(1, (0, 0), (1, 0), (2, 0))
    return job


def incarnation(index: int, number: int = 0) -> Incarnation:
    """A run of a worker, as the others know it."""
    return Incarnation(index, number)
