from __future__ import annotations

import pytest

from tests.each import each


def test_all_that_fail_are_named_with_what_is_wrong():
    def check(name):
        assert name != "second"
        if name == "third":
            pytest.fail("has gone")
        if name == "fourth":
            raise KeyError(name)

    with pytest.raises(pytest.fail.Exception) as caught:
        each(["first", "second", "third", "fourth"], check)
    said = str(caught.value)
    assert said.startswith("3 of 4 fail:\nsecond: AssertionError: assert 'second' != 'second'")
    assert "\nthird: Failed: has gone (test_each.py:" in said
    assert "\nfourth: KeyError: 'fourth' (test_each.py:" in said


def test_nothing_to_check_is_a_failure():
    with pytest.raises(AssertionError, match="there is nothing to check"):
        each([], print)


def test_a_test_whose_names_pass_passes():
    seen = []
    each("abc", seen.append)
    assert seen == ["a", "b", "c"]
