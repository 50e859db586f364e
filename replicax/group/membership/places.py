"""Where members are in their scripts when they meet, and what they get of each other."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

NOT_JOINED = (
    "The other workers train already, and this one has come later: it must get their state before its first step. Make "
    "the model, the optimizer and the dataset, and then call strategy.join(rx.Checkpoint(model=model, "
    "optimizer=optimizer, data=dataset)) before the training loop, in all workers; or "
    "CheckpointManager.restore_or_initialize(), which does so, too."
)
ELSEWHERE = (
    "The other workers train already, and gave this one their state in the middle of another part of the script "
    "({kind}, and this worker waited with {own}). It calls a program before it comes there. Let all workers join at "
    "one place: either in Model.fit, or by strategy.join before a loop of the script's own."
)


class Place(NamedTuple):
    """Where a member is in its script, as the others learn it when they meet.

    Attributes:
        calls: How many calls it has completed.
        executes: Whether it was in the middle of the next one, which the others may have completed.
        gives: Whether it is at a boundary, and can give its state to newcomers.
        is_new: Whether it is a newcomer.
        is_done: Whether its script has ended.
        kept: The number of the first call whose outcome it still has, counted from 1.
    """

    calls: int = 0
    executes: bool = False
    gives: bool = False
    is_new: bool = False
    is_done: bool = False
    kept: int = 1

    def written(self) -> bytes:
        """Returns it as a note."""
        return json.dumps([*map(int, self[:-1]), self.kept]).encode()

    @classmethod
    def of(cls, note: bytes) -> Place:
        """Returns the place that a note tells."""
        calls, *flags, kept = json.loads(note)
        executes, gives, is_new, is_done = map(bool, flags)
        return cls(calls, executes, gives, is_new, is_done, kept)


class Given(NamedTuple):
    """The things that others have given this process in a meeting.

    Attributes:
        outcome: The outcome of the call in whose middle it was; None if nobody has completed it.
        state: For a newcomer the state; else None.
        calls: The number of calls that are in that state.
    """

    outcome: list[np.ndarray] | None = None
    state: tuple[list[np.ndarray], bytes] | None = None
    calls: int = 0
