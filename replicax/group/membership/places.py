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
    """Where a member is in its script, as the others learn it when they meet."""

    calls: int = 0  # that it has completed
    executes: bool = False  # in the middle of the next call, which the others may have completed
    gives: bool = False  # at a boundary, where it can give its state to newcomers
    is_new: bool = False
    is_done: bool = False  # Its script has ended.
    kept: int = 1  # number of the first call whose outcome it still has, from 1

    def written(self) -> bytes:
        """Returns it as a note."""
        return json.dumps([*map(int, self[:-1]), self.kept]).encode()

    @classmethod
    def of(cls, note: bytes) -> Place:
        calls, *flags, kept = json.loads(note)
        executes, gives, is_new, is_done = map(bool, flags)
        return cls(calls, executes, gives, is_new, is_done, kept)


class Given(NamedTuple):
    """The things that others have given this process in a meeting."""

    outcome: list[np.ndarray] | None = None  # of the call in whose middle it was; None if no member has completed it
    state: tuple[list[np.ndarray], bytes] | None = None  # for a newcomer
    calls: int = 0  # that are in the state
