"""What a row of the table is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from peers.contest import Entry, Outcome, Plan, hold


@dataclass(frozen=True)
class Setup:
    """What every row is given.

    Attributes:
        torch: An interpreter that has torch; empty: none.
        tensorflow: An interpreter that has TensorFlow and tf_keras; empty: none.
        quick: Whether to measure less.
    """

    torch: str
    tensorflow: str
    quick: bool = False

    def plan(self, rounds: int, steps: int, launches: int = 3, tolerance: float = 5e-3, check_steps: int = 5) -> Plan:
        """Returns how much a row measures."""
        plan = Plan(rounds, steps, launches, tolerance, check_steps)
        return plan.shorter() if self.quick else plan


@dataclass
class Row:
    """What was measured.

    Attributes:
        title: What it is about.
        unit: Of `lines`.
        lines: For each variant its figure and its ratio to the best peer.
        results: The `RESULT` lines, and between which launches they varied.
        notes: What else must be said: settings, what is missing.
    """

    title: str
    unit: str = "ms"
    lines: list[tuple[str, float, float | None]] = field(default_factory=list)
    results: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def result(self, name: str, values: Sequence[float], value: float | None = None) -> None:
        """Adds a figure: the median of the launches' values, the least and the largest."""
        ordered = sorted(values)
        middle = ordered[len(ordered) // 2] if len(ordered) % 2 else sum(ordered[len(ordered) // 2 - 1 :][:2]) / 2
        self.results[name] = (middle if value is None else value, ordered[0], ordered[-1])


def contest_row(title: str, entries: Sequence[Entry], plan: Plan, scale: float = 1e3) -> tuple[Row, Outcome, str]:
    """Holds a contest and returns its row without results, the outcome, and the best peer's name, if any."""
    outcome = hold(entries, plan)
    row = Row(title)
    peers = [entry.name for entry in entries if not entry.ours]
    best = outcome.best(peers) if peers else ""
    for entry in entries:
        ratio = outcome.ratio(entry.name, best) if best else None
        row.lines.append((entry.name, outcome.seconds(entry.name) * scale, ratio))
    row.notes.append(
        f"{plan.launches} x {plan.rounds} rounds of {plan.steps} calls; losses within {plan.tolerance:.0e} in "
        f"{plan.check_steps} steps"
    )
    return row, outcome, best


Measure = Callable[[Setup], Row]
