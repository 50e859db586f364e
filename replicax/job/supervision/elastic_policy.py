"""Workers whose loss the others can bear, islands or those of an elastic job: a lost one is started again alone.

The training of islands is done when worker 0 has ended with 0. An elastic job has no such worker: any may be lost. It
is done when a member of the newest world has ended with 0, since members come to the end of the script together. From
then on nobody is started again, and the job has succeeded if the chief of that world, its first member, ends with 0.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from replicax.contracts.group import Incarnation
from replicax.errors.exit_codes import ExitCode, describe, is_restartable
from replicax.group.membership.launcher_news import ElasticRange
from replicax.job.options import Options
from replicax.job.processes.output import error_line
from replicax.job.supervision.failure import Failure
from replicax.job.supervision.loss_policy import LossPolicy, Succession
from replicax.job.supervision.members import Members

# Errors that may be over when the network is there again.
_OF_THE_NETWORK = re.compile("^[^ ]*(Timeout|Connection|OSError)")


@dataclasses.dataclass(frozen=True)
class ElasticPolicy(LossPolicy):
    """Decides about workers that come and go."""

    tolerates = True
    fewest: int = 1  # with how few workers the others go on although a lost one does not start again
    limits: ElasticRange | None = None  # how many workers an elastic job may have; None for islands
    useful_life: float = 5.0  # Seconds; whoever leaves before uses a restart.
    shortest_pause: float = 1.0  # before a newcomer that could not join is started again; each is twice the one before
    longest_pause: float = 30.0

    @classmethod
    def of(cls, options: Options) -> ElasticPolicy:
        """Returns the policy that a user has chosen."""
        is_limited = options.restarts is not None
        return cls(options.single_restarts, is_limited, options.fewest_left, options.elastic)

    @property
    def is_elastic(self) -> bool:
        """Whether the workers are in step: who is left has the state of the training, and gives it to newcomers."""
        return self.limits is not None

    def error_of(self, members: Members, failure: Failure, left: Sequence[Incarnation]) -> str:
        """Returns the error of a member's script: that of a newcomer hinders nobody."""
        return "" if _is_newcomer(members, failure, left) else failure.error

    def hindrance(self, members: Members, failure: Failure, left: Sequence[Incarnation]) -> str:
        code, incarnation = failure.code, failure.task.incarnation
        leaves, members_left = members[incarnation].is_leaving, members.are_any(left)
        if _is_newcomer(members, failure, left):  # The others have not noticed it.
            return ""
        if not is_restartable(code):
            return f"a restart would only repeat {describe(code)}"
        if failure.error and failure.error == members.error:
            return f"the error is that of the worker before it ({failure.error})"
        if (
            code == ExitCode.PEER_LOST
            and not failure.is_lost
            and not (members_left and members.is_left_out(incarnation))
        ):
            return error_line(failure.words) or "the state of the training is lost"
        if code == ExitCode.RESUME and self.is_elastic and not leaves:
            return "all of them are to end and to be resumed"
        if not left:
            return "none is left"
        if members.world and not members_left:
            return "nobody is left who holds the state of the training"
        if members.revived < self.restarts or len(left) >= self.fewest or leaves:
            return ""
        return f"{len(left)} of at least {self.fewest} workers are left, and no restart"

    def succession(self, members: Members, failure: Failure, now: float) -> Succession:
        """Has a worker started again if a restart is left; one that could not join, after growing pauses."""
        incarnation = failure.task.incarnation
        record = members[incarnation]
        could_not_join = bool(members.world) and not record.was_member
        hopeless = could_not_join and _would_repeat(members, failure)
        counts = not could_not_join and (not record.is_leaving or now - record.began < self.useful_life)
        if members.is_done or hopeless or (counts and members.revived >= self.restarts):
            return Succession(again=False, could_not_join=could_not_join, hopeless=hopeless)
        before = members.pauses.get(incarnation.index, self.shortest_pause / 2)
        pause = min(2 * before, self.longest_pause) if could_not_join else 0.0
        return Succession(True, pause, counts, could_not_join)

    def is_done(self, members: Members, incarnation: Incarnation) -> bool:
        ends_it = members[incarnation].was_member or not members.world if self.is_elastic else incarnation.index == 0
        return members.is_done or ends_it


def _is_newcomer(members: Members, failure: Failure, left: Sequence[Incarnation]) -> bool:
    """Returns whether a process has ended that the members, some of whom are left, have not taken in."""
    return members.are_any(left) and not members[failure.task.incarnation].was_member


def _would_repeat(members: Members, failure: Failure) -> bool:
    """Returns whether a newcomer has failed for a reason that another start would not change."""
    error = failure.error
    again = bool(error) and members.refusals.get(failure.task.index) == error and not _OF_THE_NETWORK.search(error)
    return again or not is_restartable(failure.code)
