"""Decisions that the workers of a training carry out at the same step, though one of them takes them.

Nothing is exchanged before a process asks (`group/stop_vote.py`); the steps that others have begun by then
are done first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from replicax.group.fixed_group import FixedGroup
from replicax.group.stop_vote import StopVote
from replicax.strategies import Strategy


class Together:
    """An action to do after a step: at once in one process; with several, after a step on which all agree."""

    def __init__(self, vote: StopVote | None = None):
        self._vote = vote
        self._asked = False

    def ask(self) -> None:
        """Requests the action for this process."""
        if self._asked:
            return
        self._asked = True
        if self._vote is not None:
            self._vote.preempt()

    def check(self) -> bool:
        """Returns whether to do it now: the same in all processes; each calls it after every step."""
        if self._vote is None:
            now, self._asked = self._asked, False
            return now
        if not self._vote.check():
            return False
        self._vote.renew()
        self._asked = False
        return True


@contextlib.contextmanager
def together(strategy: Strategy) -> Iterator[Together]:
    """Makes a decision of all processes of a strategy, in a `with` block."""
    if not strategy.placement.spans_processes:
        yield Together()
        return
    vote = StopVote(ballot=FixedGroup().ballot)  # Nobody is preempted: no worker leaves, wherever members change.
    try:
        yield Together(vote)
    finally:
        vote.close()
