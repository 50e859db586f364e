"""When fragments are due, and which variables belong to which."""

import pytest

from replicax.errors import ArgumentError
from replicax.islands.rounds import Schedule, cut_evenly


@pytest.mark.parametrize(("every", "fragments"), [(1, 1), (7, 1), (50, 4), (7, 7), (10, 3)])
def test_each_fragment_is_due_once_a_round_and_the_last_at_its_end(every, fragments):
    schedule = Schedule(every, fragments)
    due = [(step, f) for step in range(1, every + 1) for f in schedule.due(step)]
    assert [f for _, f in due] == list(range(fragments))
    assert due[-1][0] == every
    assert len({step for step, _ in due}) == fragments, "never two at once: the bytes are spread"


def test_a_fragment_is_due_when_its_share_of_the_round_is_over():
    schedule = Schedule(10, 3)  # After 3.3, 6.7 and 10 steps.
    assert {step: list(schedule.due(step)) for step in range(1, 11) if [*schedule.due(step)]} == {
        4: [0],
        7: [1],
        10: [2],
    }


@pytest.mark.parametrize(("every", "fragments"), [(0, 1), (3, 0), (3, 4), (2.5, 1), (True, 1)])
def test_impossible_rounds_are_refused(every, fragments):
    with pytest.raises(ArgumentError):
        Schedule(every, fragments)


def test_parts_are_about_equal():
    sizes = [1000, 10, 1000, 10, 990, 10, 1010, 10]
    part_of = cut_evenly(sizes, 3)
    held = [sum(size for size, part in zip(sizes, part_of, strict=True) if part == each) for each in range(3)]
    assert sum(held) == sum(sizes)
    assert max(held) - min(held) <= 1000
    assert set(cut_evenly([5, 5, 5, 5], 2)) == {0, 1}
