"""The decision whether the others can bear the loss of a task. This is the null policy: the loss of one ends all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from replicax.contracts.group import Incarnation
from replicax.job.supervision.failure import Failure
from replicax.job.supervision.members import Members


class Succession(NamedTuple):
    """The fate of a task whose loss the others bear."""

    again: bool  # it starts again
    pause: float = 0.0  # seconds before that
    counts: bool = False  # as one of the restarts
    could_not_join: bool = False  # it ended before the others took it in
    hopeless: bool = False  # another start would only repeat its error


@dataclasses.dataclass(frozen=True)
class LossPolicy:
    """Decides about tasks that are lost alone; nothing here changes."""

    tolerates = False  # whether a task may be lost at all
    restarts: int = 0  # how many restarts of single tasks are left
    is_limited: bool = True  # A user has chosen that number.

    @property
    def is_elastic(self) -> bool:
        """Whether the workers are in step, though they come and go."""
        return False

    def after(self, restarts: int) -> LossPolicy:
        """Returns the policy when some restarts have been used."""
        return dataclasses.replace(self, restarts=self.restarts - restarts)

    def error_of(self, members: Members, failure: Failure, left: Sequence[Incarnation]) -> str:
        """Returns the error that would end the job if the next worker had it, too; "" if there is none."""
        del members, failure, left
        return ""

    def hindrance(self, members: Members, failure: Failure, left: Sequence[Incarnation]) -> str:
        """Returns why the others, those who are `left`, cannot go on without a worker; "" if they can."""
        del members, left
        return f"{failure.task.name} is needed"

    def succession(self, members: Members, failure: Failure, now: float) -> Succession:
        """Returns what becomes of a task whose loss the others bear."""
        del members, failure, now
        return Succession(again=False)

    def is_done(self, members: Members, incarnation: Incarnation) -> bool:
        """Returns whether the training is done when this worker has ended with 0."""
        del incarnation
        return members.is_done
