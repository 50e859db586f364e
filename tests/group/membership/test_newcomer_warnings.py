"""Warnings for scripts that let no newcomer in."""

from __future__ import annotations

import warnings

import pytest

from replicax.group.membership.elastic_group import NewcomerWarnings
from tests.clock import Clock


@pytest.fixture
def clock():
    return Clock()


def test_a_script_that_named_no_state_is_told_once_and_at_once(clock):
    newcomer_warnings = NewcomerWarnings(clock)
    with pytest.warns(UserWarning, match=r"strategy\.join"):
        newcomer_warnings.refused(is_named=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        newcomer_warnings.refused(is_named=False)


def test_a_loop_that_never_comes_to_a_boundary_is_told_after_a_minute(clock):
    newcomer_warnings = NewcomerWarnings(clock)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        newcomer_warnings.refused(is_named=True)
        clock.now = 59.0
        newcomer_warnings.refused(is_named=True)
    clock.now = 61.0
    with pytest.warns(UserWarning, match="waited for 60 s"):
        newcomer_warnings.refused(is_named=True)


def test_one_that_was_let_in_does_not_count_for_the_next(clock):
    newcomer_warnings = NewcomerWarnings(clock)
    newcomer_warnings.refused(is_named=True)
    newcomer_warnings.answered()
    clock.now = 100.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        newcomer_warnings.refused(is_named=True)
