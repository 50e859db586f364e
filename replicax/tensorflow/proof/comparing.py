"""Finds the first number in which two recordings differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from replicax.tensorflow.proof.recording import Recording, Tensor

#: By how much an objective may differ, relative to its size.
LOSS_TOLERANCE = 1e-4
#: By how much a tensor may differ with each step: relative to how far training has moved it, and to its norm. Rounding
#: errors add up, and Adam moves a weight as far whose gradient is nothing but rounding error.
OF_UPDATE, OF_NORM = 1e-3, 1e-6
#: An objective that has become smaller than this part of the largest one is compared with that part.
FLOOR = 1e-3


class Difference(NamedTuple):
    """A number that differs."""

    step: int  # after how many; 0 is before the first
    name: str  # the objective, or a variable with its name on either side
    relative: float  # to its size; infinite where there is nothing to compare with
    detail: str  # a sentence


def first_difference(
    expected: Recording, found: Recording, losses: float = LOSS_TOLERANCE, of_update: float = OF_UPDATE
) -> Difference | None:
    """Returns the first number that differs by more than the tolerances, or None."""
    if (wrong := _initial_difference(expected, found)) is not None:
        return wrong
    found_losses = loss_differences(expected, found)
    snapshots = {(each.step, each.site): each for each in found.snapshots}
    steps = {each.step for each in expected.snapshots} | set(range(1, len(found_losses) + 1))
    for step in sorted(steps):
        if step <= len(found_losses) and not (relative := found_losses[step - 1]) <= losses:
            before, after = expected.objectives[step - 1], found.objectives[step - 1]
            return Difference(
                step, "the loss", relative, f"The loss of step {step} was {before!r} and is {after!r} ({relative:.1e})."
            )
        for snapshot in (each for each in expected.snapshots if each.step == step):
            other = snapshots.get((step, snapshot.site))
            if other is not None:
                starts = expected.initial if snapshot.site == 0 else ()
                for wrong in _differences(step, snapshot.tensors, other.tensors, starts, of_update):
                    return wrong
    if len(found.objectives) < len(expected.objectives):
        return Difference(
            len(found.objectives),
            "the number of steps",
            math.inf,
            f"TensorFlow made {len(expected.objectives)} steps, replicax {len(found.objectives)}.",
        )
    return None


def loss_differences(expected: Recording, found: Recording) -> list[float]:
    """Returns by how much the objective of each step differs that both have made, relative to its size."""
    floor = FLOOR * max(map(abs, expected.objectives), default=0.0)
    return [
        abs(one - other) / max(abs(one), floor) if one != other else 0.0
        for one, other in zip(expected.objectives, found.objectives, strict=False)
    ]


def _initial_difference(expected: Recording, found: Recording) -> Difference | None:
    if not expected.initial or not found.initial:
        return None  # variables that the first step makes: the first loss says whether they were equal
    return next(_differences(0, expected.initial, found.initial, (), 0.0), None)


def _differences(
    step: int, expected: Sequence[Tensor], found: Sequence[Tensor], starts: Sequence[Tensor], of_update: float
) -> Iterator[Difference]:
    when = f"after step {step}" if step else "before the first step"
    for index, (one, other) in enumerate(zip(expected, found, strict=False)):
        name = one.name if one.name == other.name else f"{one.name} ({other.name})"
        if math.prod(one.shape) != math.prod(other.shape):
            yield Difference(step, name, math.inf, f"{name} has the shape {one.shape}, and {other.shape} on replicax.")
            return
        start = starts[index] if index < len(starts) and starts[index].shape == one.shape else None
        moved = one.distance(start) if start is not None else one.norm
        distance = one.distance(other)
        if not distance <= max(1, step) * (of_update * moved + OF_NORM * max(one.norm, other.norm)):
            relative = distance / (moved or one.norm or 1.0)
            of = "how far it has moved" if start is not None else "its norm"
            yield Difference(step, name, relative, f"{name} differs {when} by {relative:.1e} of {of}.")
    if len(expected) != len(found):
        yield Difference(
            step, "the variables", math.inf, f"{len(expected)} variables are trained, and {len(found)} on replicax."
        )
