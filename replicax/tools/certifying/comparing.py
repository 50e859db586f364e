"""Finds the first tensor of a run that differs from one device by more than other rounding explains."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from replicax.tools.certifying.recording import Event, Recording, Value

#: How many times the measured spread a difference may be: the spread is that of a few runs, seen through few numbers.
MARGIN = 10.0
#: How many last bits a tensor may differ by that no perturbation has changed.
LAST_BITS = 8.0
#: Kinds that are terms of one sum: the rounding error of one may be that of the largest.
_GRADIENTS = {"gradient", "applied gradient", "all-reduce"}
#: Kinds that have updates.
_HELD = {"variable", "result"}
#: Kinds whose rounding is that of what is stored, not that of what is computed.
_STORED = {"variable", "rate", "random state"}

Key = tuple[int, int, str, int]


class Difference(NamedTuple):
    """The first tensor that differs.

    Attributes:
        step: In which step, from 1; 0 where the script failed.
        kind: What it is, such as `"gradient"`.
        name: Its name: the path of a variable, the name of a probe.
        line: The user's line, such as `"train.py:31"`; empty where it is not known.
        distance: The norm of the difference; infinite where there is nothing to subtract.
        tolerance: What rounding explains of it.
        detail: A sentence.
        rule: The rule that is broken; empty where no measured property decides which.
        evidence: What was measured that decides the rule; empty without one.
    """

    step: int
    kind: str
    name: str
    line: str
    distance: float
    tolerance: float
    detail: str
    rule: str = ""
    evidence: str = ""

    def __str__(self) -> str:
        rule = f" Probably broken: {self.rule} ({self.evidence})." if self.rule else " No rule of the catalogue fits."
        return f"{self.line + ': ' if self.line else ''}{self.detail}{rule}"


class Tolerances:
    """By how much each tensor may differ: measured on one device with other rounding.

    Args:
        base: The run on one device.
        perturbed: Runs there with other rounding.
    """

    def __init__(self, base: Recording, perturbed: Sequence[Recording]):
        self._dtype = str(base.facts.get("dtype", "float32"))
        self._own: dict[Key, float] = {}
        relative: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._largest: dict[tuple[int, str], float] = defaultdict(float)
        others = [each.by_key() for each in perturbed]
        largest_so_far: dict[tuple[str, str, int], float] = defaultdict(float)
        for key, event in base.by_key().items():
            if event.combine in ("rows", "each"):
                continue
            value = event.value
            spreads = [distance(value, other[key].value) for other in others if key in other]
            so_far = (event.kind, event.name, event.number)
            # Rounding errors of one step are there in the next one.
            largest_so_far[so_far] = max(largest_so_far[so_far], *spreads, 0.0)
            self._own[key] = largest_so_far[so_far]
            if value.norm:
                relative[event.step, event.kind].append(self._own[key] / value.norm)
            self._largest[event.step, event.kind] = max(self._largest[event.step, event.kind], value.norm)
        self._stored = {(event.step, event.name): event.value.norm for event in base.events if event.kind in _HELD}
        self._usual = {place: statistics.median(spreads) for place, spreads in relative.items()}

    def of(self, event: Event) -> float:
        """Returns the tolerance of an event of the run on one device."""
        value, place = event.value, (event.step, event.kind)
        if not jnp.issubdtype(jnp.dtype(value.dtype), jnp.inexact):
            return 0.0
        bits = float(jnp.finfo(value.dtype).eps)
        if event.kind not in _STORED:
            bits = max(bits, float(jnp.finfo(self._dtype).eps))
        scale = self._largest[place] if event.kind in _GRADIENTS else value.norm
        spread = max(self._own.get(event.key, 0.0), self._usual.get(place, 0.0) * value.norm)
        # An update is what was stored less what was stored before.
        stored = self._stored.get((event.step, event.name), 0.0) if event.kind == "update" else 0.0
        return MARGIN * spread + LAST_BITS * (bits * scale + float(jnp.finfo(value.dtype).eps) * stored)


class Comparison(NamedTuple):
    """The findings of a comparison of two recordings."""

    compared: int  # how many tensors
    left_out: tuple[str, ...]  # what one of the runs has not, or has not whole
    difference: tuple[Event, Event | None, Difference] | None  # on one device, there, and how they differ
    largest: float  # part of its tolerance that any difference has


def compare(base: Recording, other: Recording, tolerances: Tolerances) -> Comparison:
    """Compares the run on a target with that on one device, in the order of causes, up to the first difference."""
    found = other.by_key()
    compared, left_out, largest = 0, dict[str, None](), 0.0
    for key, event in base.by_key().items():
        there = found.get(key)
        if "each" in (event.combine, there.combine if there else ""):
            continue
        if event.step > other.steps:
            detail = f"One device made {base.steps} steps, and there were {other.steps} there."
            return Comparison(
                compared, tuple(left_out), (event, None, _difference(event, math.inf, 0.0, detail)), largest
            )
        if there is None:
            left_out[_called(event)] = None
            continue
        compared += 1
        tolerance = 0.0 if event.combine == "rows" else tolerances.of(event)
        far, detail = _compared(event, there, tolerance)
        if detail:
            return Comparison(
                compared, tuple(left_out), (event, there, _difference(there, far, tolerance, detail)), largest
            )
        largest = max(largest, far / tolerance if tolerance else 0.0)
    return Comparison(compared, tuple(left_out), None, largest)


def _compared(event: Event, there: Event, tolerance: float) -> tuple[float, str]:
    """Returns how far two events are from each other, and a sentence if that is too far."""
    what = _called(event)
    where = f"in step {event.step}"
    if event.combine == "rows":
        mine, theirs = event.value.rows, there.value.rows
        same = mine == theirs or not mine or not theirs
        return (
            (0.0, "")
            if same
            else (math.inf, f"The rows of the batch differ {where}: {len(mine)}, and {len(theirs)} there.")
        )
    one, other = event.value, there.value
    if there.disagrees and spread_of(there) > tolerance:
        return math.inf, f"{what} is not the same on all replicas {where}: {', '.join(there.parts)}."
    for here, elsewhere, name in ((one.shape, other.shape, "shape"), (one.dtype, other.dtype, "dtype")):
        if here != elsewhere:
            return math.inf, f"{what} has the {name} {here} {where}, and {elsewhere} there."
    far = distance(one, other)
    if far <= tolerance:
        return far, ""
    size = (
        f"{one.numbers[0]:.7g}, and {other.numbers[0]:.7g} there"
        if len(one.numbers) == len(other.numbers) == 1
        else (f"of norm {one.norm:.4g}, by {far:.2g}")
    )
    return far, f"{what} differs {where}: {size}; rounding explains {tolerance:.2g}."


def _called(event: Event) -> str:
    return event.name if event.kind == event.name.removeprefix("the ") else f"{event.kind} {event.name!r}"


def distance(one: Value, other: Value) -> float:
    """Returns the norm of the difference of two values; infinite where only one of them is finite."""
    if one.shape != other.shape:
        return math.inf
    if not one.is_finite or not other.is_finite:
        return 0.0 if one.is_finite == other.is_finite else math.inf
    return one.distance(other)


def spread_of(event: Event) -> float:
    """Returns how far the parts of an event are from each other."""
    first, *others = event.parts.values()
    return max((distance(first, each) for each in others), default=0.0)


def _difference(event: Event, far: float, tolerance: float, detail: str) -> Difference:
    detail = detail[:1].upper() + detail[1:]
    return Difference(event.step, event.kind, event.name, event.line, far, tolerance, detail)


def rows_usable(base: Recording, bits: Sequence[Recording], reversed_: Recording) -> bool:
    """Returns whether a script's loss lets rows come in another order: it changes no more than the last bits do."""
    tolerances = Tolerances(base, bits)
    mine: Mapping[Key, Event] = base.by_key()
    for key, event in reversed_.by_key().items():
        is_early = event.kind in ("loss", "gradient", "applied gradient") and event.step == 1
        here = mine.get(key) if is_early and event.combine != "each" else None
        if here is not None and distance(here.value, event.value) > MARGIN * tolerances.of(here):
            return False
    return not reversed_.error and reversed_.steps == base.steps
