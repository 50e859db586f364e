"""The catalogue of mistakes, each with the measured property that decides it. Where none decides, no rule is named."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from replicax.tools.certifying.comparing import Difference, Tolerances, distance, spread_of
from replicax.tools.certifying.recording import Event, Recording

LOCAL_BATCH = "the loss is divided by the batch of one replica, and not by the global one"
MEAN_FOR_SUM = "a mean over replicas where a sum is due"
SUM_FOR_MEAN = "a sum over replicas where a mean is due"
REDUCED_TWICE = "reduced twice, or multiplied by the number of replicas"
NEVER_REDUCED = "never reduced: each replica goes on with its own"
STATISTICS = "statistics of BatchNorm of each replica's rows alone"
SAME_RANDOM = "random numbers are the same on all replicas"
OTHER_RANDOM = "random numbers depend on the replica: a custom loop asks for random_numbers='per_row' of its strategy"
ROWS = "rows are read twice, or missed"
BATCH_GROWS = "the global batch grows with the number of replicas"
ORDER = "the order of the rows depends on the number of replicas or workers"
PADDING = "padding is counted"
RATE = "the learning rate is scaled with the number of replicas"
CLIPPED = "gradients are clipped before they are reduced"
NOT_MIRRORED = "a value that has to be equal on all replicas is not"
FROZEN = "a stale capture: the value never changes there"
DTYPE = "a dtype depends on the number of replicas"
SHAPE = "a shape depends on the number of replicas"
REFUSED = "the script cannot run on several replicas"


class Case(NamedTuple):
    """The known facts of a difference."""

    here: Event  # on one device
    there: Event
    base: Recording
    other: Recording
    replicas: int
    tolerances: Tolerances

    def is_times(self, factor: float) -> bool:
        """Whether the value there is `factor` times the one here, as far as rounding lets one tell."""
        one, other = self.here.value, self.there.value
        slack = self.tolerances.of(self.here) * max(1.0, abs(factor))
        if not (one.is_finite and other.is_finite) or one.shape != other.shape:
            return False
        # A value that rounding explains has every ratio.
        return abs(factor - 1.0) * one.norm > 4 * slack and one.distance(other, factor) <= slack

    def events(self, recording: Recording, kind: str) -> list[Event]:
        """Returns the events of a kind in the step."""
        return [event for event in recording.events if event.kind == kind and event.step == self.here.step]


Rule = Callable[[Case], tuple[str, str] | None]


def with_rule(difference: Difference, case: Case) -> Difference:
    """Returns a difference with the rule that is broken, if one is decided."""
    for rule in _RULES:
        if (found := rule(case)) is not None:
            return difference._replace(rule=found[0], evidence=found[1])
    return difference


def _types(case: Case) -> tuple[str, str] | None:
    one, other = case.here.value, case.there.value
    if case.here.kind == "rows":
        return None
    if one.dtype != other.dtype:
        return DTYPE, f"{one.dtype} on one device, {other.dtype} there"
    return (SHAPE, f"{one.shape} on one device, {other.shape} there") if one.shape != other.shape else None


def _equality(case: Case) -> tuple[str, str] | None:
    if not case.there.disagrees:
        return None
    rule = NEVER_REDUCED if "gradient" in case.here.kind else NOT_MIRRORED
    return rule, f"{len({part.digest for part in case.there.parts.values()})} different values"


def _rows(case: Case) -> tuple[str, str] | None:
    if case.here.kind != "rows":
        return None
    here, there = Counter(case.here.value.rows), Counter(case.there.value.rows)
    all_here, all_there = (
        Counter(row for event in recording.events if event.kind == "rows" for row in event.value.rows)
        for recording in (case.base, case.other)
    )
    more, fewer = there - here, here - there
    counts = f"{here.total()} rows in the step on one device, {there.total()} there"
    if there.total() == case.replicas * here.total() and (len(there) > len(here) or here.total() > 1):
        return BATCH_GROWS, counts
    if there.total() > here.total() and not fewer and (set(more) <= set(here) or len(more) == 1):
        return PADDING, f"{counts}; {more.total()} of them fill up"
    if (repeated := _repeated(there) - _repeated(here)) > 0:
        return ROWS, f"{repeated} more rows than on one device are there twice in the step"
    # Workers that each have an order of their own read the same rows in different steps.
    if len(case.there.parts) > 1 and (repeated := _repeated(all_there) - _repeated(all_here)) > 0:
        return ROWS, f"{repeated} more rows than on one device are there twice in {case.other.steps} steps"
    moved = more.keys() & all_here.keys() | fewer.keys() & all_there.keys()
    if there.total() == here.total() and moved:
        return ORDER, f"{len(moved)} rows of the step come in another one"
    if fewer and not more:
        return ROWS, f"{fewer.total()} of {here.total()} rows are missed in the step"
    return None


def _repeated(rows: Counter[str]) -> int:
    return rows.total() - len(rows)


def _rate(case: Case) -> tuple[str, str] | None:
    if case.here.kind not in ("rate", "update"):
        return None
    for factor, text in _factors(case.replicas, roots=True):
        if case.is_times(factor):
            what = "the rate" if case.here.kind == "rate" else "the update, of equal gradients,"
            return RATE, f"{what} is {text} that of one device"
    return None


def _clipping(case: Case) -> tuple[str, str] | None:
    if case.here.kind not in ("all-reduce", "applied gradient", "gradient"):
        return None
    equal = [event for event in case.events(case.other, "local gradient norm") if _is_one_norm(event)]
    other = [event for event in case.events(case.other, "local gradient norm") if not _is_one_norm(event)]
    if equal and other and case.replicas > 1:
        norm = next(iter(equal[0].parts.values())).norm
        return CLIPPED, f"the norm of what is reduced is {norm:.4g} on every replica, and the gradients' differ"
    return None


def _is_one_norm(event: Event) -> bool:
    parts = list(event.parts.values())
    return len(parts) > 1 and parts[0].norm > 0 and spread_of(event) <= 1e-5 * parts[0].norm


def _factor(case: Case) -> tuple[str, str] | None:
    kind = case.here.kind
    rules = {
        "loss": (LOCAL_BATCH, MEAN_FOR_SUM),
        "gradient": (REDUCED_TWICE, MEAN_FOR_SUM),
        "applied gradient": (REDUCED_TWICE, MEAN_FOR_SUM),
        "all-reduce": (SUM_FOR_MEAN, MEAN_FOR_SUM),
        "result": (SUM_FOR_MEAN, MEAN_FOR_SUM),
        "metric": (REDUCED_TWICE, MEAN_FOR_SUM),
        "statistic": (SUM_FOR_MEAN, MEAN_FOR_SUM),
        "state": (SUM_FOR_MEAN, MEAN_FOR_SUM),
        "optimizer": (REDUCED_TWICE, MEAN_FOR_SUM),
    }
    if kind not in rules:
        return None
    for factor, text in _factors(case.replicas):
        if case.is_times(factor):
            return rules[kind][factor < 1], f"it is {text} that of one device"
    return None


def _factors(replicas: int, roots: bool = False) -> Iterator[tuple[float, str]]:
    yield float(replicas), f"{replicas} times"
    yield 1.0 / replicas, f"1/{replicas} of"
    if roots:
        yield math.sqrt(replicas), f"the square root of {replicas} times"


def _statistics(case: Case) -> tuple[str, str] | None:
    """Variances within replicas are smaller than that of all rows, while the means agree."""
    layer, _, last = case.here.name.rpartition("/")
    one, other = case.here.value, case.there.value
    if case.here.kind != "statistic" or last != "moving_variance" or not one.numbers:
        return None
    means = [
        (mine, theirs)
        for mine in case.events(case.base, "statistic")
        for theirs in case.events(case.other, "statistic")
        if mine.name == theirs.name == f"{layer}/moving_mean"
    ]
    agree = all(distance(mine.value, theirs.value) <= case.tolerances.of(mine) for mine, theirs in means)
    if means and agree and all(b <= a for a, b in zip(one.numbers, other.numbers, strict=True)):
        return STATISTICS, "the moving means agree, and each variance is smaller than on one device"
    return None


def _randomness(case: Case) -> tuple[str, str] | None:
    if case.here.kind not in ("probe", "statistic", "loss", "gradient", "applied gradient", "update", "all-reduce"):
        return None
    for event in case.events(case.other, "draw"):
        parts = list(event.parts.values())
        if len(parts) == case.replicas > 1 and len({part.digest for part in parts}) == 1:
            return SAME_RANDOM, f"{event.name} of shape {parts[0].shape} gave each replica the same ({event.line})"
    return None


def _other_randomness(case: Case) -> tuple[str, str] | None:
    """All replicas together draw other numbers than one device, which has as many."""
    if case.here.kind not in ("probe", "statistic", "loss", "gradient", "applied gradient", "update", "all-reduce"):
        return None
    here = {(event.name, event.number): event.value for event in case.events(case.base, "draw")}
    for event in case.events(case.other, "draw"):
        one, parts = here.get((event.name, event.number)), list(event.parts.values())
        if one is None or len(parts) != case.replicas or one.shape[0] != sum(part.shape[0] for part in parts):
            continue
        norm = math.hypot(*(part.norm for part in parts))
        if not math.isclose(norm, one.norm, rel_tol=1e-6):
            return OTHER_RANDOM, f"{event.name} drew numbers of norm {one.norm:.5g} on one device, {norm:.5g} there"
    return None


def _frozen(case: Case) -> tuple[str, str] | None:
    if case.here.kind == "update" and case.there.value.norm == 0 < case.here.value.norm:
        return FROZEN, f"it moves by {case.here.value.norm:.2g} on one device, and stays there"
    if case.here.kind not in ("optimizer", "statistic", "state", "metric", "variable"):
        return None
    before = [
        {
            event.step: event.value.digest
            for event in recording.events
            if event.kind == case.here.kind and event.name == case.here.name
        }
        for recording in (case.base, case.other)
    ]
    if len(set(before[1].values())) == 1 < len(set(before[0].values())):
        return FROZEN, "it changes on one device, and stays there"
    return None


_RULES: Sequence[Rule] = (
    _types, _equality, _rows, _frozen, _rate, _factor, _clipping, _statistics, _randomness, _other_randomness,
)  # fmt: skip
