"""The outcomes of the last calls are kept as long as another member may need them."""

from __future__ import annotations

import numpy as np

from replicax.group.membership.elastic_group import Outcomes

LARGE = 1 << 22


def test_a_step_is_kept_beside_a_count_that_follows_it_and_not_beside_many_steps():
    outcomes = Outcomes()
    for number, size in enumerate([LARGE, 8, LARGE, 8], 1):
        outcomes.add(lambda number=number: [np.array(number)], size)
    assert (outcomes.first, outcomes.last) == (3, 4)
    assert [int(outcomes.of(number)[0]) for number in (3, 4)] == [3, 4]


def test_a_newcomer_has_no_outcome_of_calls_before_it():
    outcomes = Outcomes()
    outcomes.begin_at(7)
    assert (outcomes.first, outcomes.last) == (8, 7)
