from __future__ import annotations

import itertools

from tests.matrices import _spread, covering, matrix


def test_every_pair_of_values_is_shown_by_some_case_that_always_runs():
    axes = ["abcdefg", "xyz", "12"]
    cases = list(itertools.product(*axes))
    chosen = covering(cases)
    assert chosen < set(cases)
    for first, second in itertools.combinations(range(3), 2):
        assert {(case[first], case[second]) for case in chosen} == set(itertools.product(axes[first], axes[second]))


def test_cases_that_show_nothing_new_are_for_the_night_and_none_is_lost():
    cases = matrix("ab", "xy", "12")
    assert [case.id for case in cases] == ["-".join(case) for case in itertools.product("ab", "xy", "12")]
    nightly = [case for case in cases if case.marks]
    assert len(nightly) == 4
    assert {mark.name for case in nightly for mark in case.marks} == {"nightly"}


def test_the_cases_of_a_day_show_each_value_if_so_few_can():
    cases = [{"a": a, "b": b} for a in range(4) for b in range(3)]
    chosen = _spread(cases, 4)
    assert len(chosen) == 4
    assert {cases[place]["a"] for place in chosen} == set(range(4))
    assert {cases[place]["b"] for place in chosen} == set(range(3))
    assert _spread([{"a": a} for a in range(9)], 3) == {0, 4, 8}
    assert _spread(cases[:2], 5) == {0, 1}
