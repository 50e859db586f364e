"""How far an island is: in its round, and since each fragment was synchronized."""

from __future__ import annotations

import dataclasses

from replicax.islands.notes import Note
from replicax.islands.rounds import Schedule


@dataclasses.dataclass
class Progress:
    """How far an island is in its round. The fields that a `Note` has mean what they mean there."""

    schedule: Schedule
    step: int = 0
    steps: int = 0
    exchanges: int = 0
    since: list[int] = dataclasses.field(default_factory=list)
    weights: list[float] = dataclasses.field(default_factory=list)
    due: tuple[int, ...] = ()  # fragments that are to be synchronized before the next step
    assigned: int = 0

    def __post_init__(self) -> None:
        self.since = self.since or [0] * self.schedule.fragments
        self.weights = self.weights or [0.0] * self.schedule.fragments

    def add_step(self, weight: float) -> None:
        """Notes that a step was made."""
        self.step, self.steps = self.step + 1, self.steps + 1
        self.since = [count + 1 for count in self.since]
        self.weights = [each + weight for each in self.weights]
        self.due = (*self.due, *self.schedule.due(self.step))
        if self.step == self.schedule.every:
            self.step = 0

    def synchronized(self, fragments: tuple[int, ...]) -> None:
        """Notes that fragments are equal on all islands."""
        self.exchanges, self.assigned = self.exchanges + 1, 0
        for fragment in fragments:
            self.since[fragment], self.weights[fragment] = 0, 0.0
        self.due = tuple(fragment for fragment in self.due if fragment not in fragments)

    def taken_over(self, leader: Note) -> None:
        """Goes on where another island is."""
        self.step = 0 if leader.at == "end" else leader.step  # `synchronize` ends the round.
        self.steps, self.since = leader.steps, list(leader.since)
        self.exchanges = leader.exchanges
        self.weights, self.due = [0.0] * self.schedule.fragments, ()

    def note(self, at: str, fragments: tuple[int, ...], variables: tuple[int, int], settings: str) -> Note:
        """Returns what the others learn of this island."""
        numbers = tuple(self.weights), self.step, self.steps, tuple(self.since), self.exchanges
        return Note(at, fragments, *numbers, variables, settings, self.assigned)
