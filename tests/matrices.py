"""Combinations of a test's parameters: all of them under `make test-all`, the telling ones under `make test`.

`matrix` chooses by pairs of values. `@pytest.mark.daily(n)` lets `make test` run `n` of a test's cases, such as show as
many of the values as so few can.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

Case = tuple[str, ...]
Pair = tuple[int, str, int, str]


def matrix(*axes: Iterable[str]) -> list[Any]:
    """Returns all combinations of names as parameters of a test.

    So many of them as show each value of an axis with each value of every other one are run always. The others are
    for the night.
    """
    cases = list(itertools.product(*map(tuple, axes)))
    telling = covering(cases)
    return [
        pytest.param(*case, id="-".join(case), marks=() if case in telling else pytest.mark.nightly) for case in cases
    ]


def covering(cases: list[Case]) -> set[Case]:
    """Returns few of the cases, which have every pair of values that comes in any of them."""
    missing = set[Pair]().union(*map(_pairs, cases))
    shown: Counter[Pair] = Counter()

    def gain(case: Case) -> tuple[int, int]:  # Of cases that show as many new pairs, the one whose pairs are rare.
        return len(_pairs(case) & missing), -sum(shown[pair] for pair in _pairs(case))

    chosen: set[Case] = set()
    while missing:
        best = max(cases, key=gain)
        chosen.add(best)
        shown.update(_pairs(best))
        missing -= _pairs(best)
    return chosen


def leave_to_the_night(items: Iterable[pytest.Item]) -> None:
    """Marks the cases as nightly that `@pytest.mark.daily(n)` does not choose."""
    cases: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("daily"):
            cases.setdefault((item.nodeid.partition("[")[0], item.originalname), []).append(item)
    for each in cases.values():
        marker = each[0].get_closest_marker("daily")
        assert marker is not None
        open_ = [item for item in each if not item.get_closest_marker("nightly")]
        chosen = _spread([item.callspec.indices for item in open_], marker.args[0])
        for place, item in enumerate(open_):
            if place not in chosen:
                item.add_marker(pytest.mark.nightly)


def _spread(cases: list[dict[str, int]], count: int) -> set[int]:
    """Returns the places of `count` cases: each shows what has been shown least, far from the others."""
    shown: Counter[tuple[str, int]] = Counter()
    left = list(range(len(cases)))
    chosen: set[int] = set()
    while left and len(chosen) < count:
        best = min(
            left,
            key=lambda place: (
                sum(shown[value] for value in cases[place].items()),
                -min((abs(place - other) for other in chosen), default=0),
            ),
        )
        left.remove(best)
        chosen.add(best)
        shown.update(cases[best].items())
    return chosen


def _pairs(case: Case) -> set[Pair]:
    return {(i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(case)), 2)}
