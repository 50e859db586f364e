"""Combinations of a test's parameters: all of them under `make test-all`, the telling ones under `make test`."""

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


def _pairs(case: Case) -> set[Pair]:
    return {(i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(case)), 2)}
