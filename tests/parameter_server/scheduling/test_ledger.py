"""The ledger: who gets which step, and how old a step's variables can become."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from replicax.parameter_server.scheduling.ledger import Ledger


class Step:
    def __init__(self, name: Any):
        self.name = name

    def __repr__(self) -> str:
        return f"Step({self.name})"


def ledger_of(workers=2, steps=0, ready=None, **options):
    ledger = Ledger.of(workers, **options)
    for worker in range(workers) if ready is None else ready:
        ledger = ledger.worker_ready(worker)
    for i in range(steps):
        ledger = ledger.add(Step(i))
    return ledger


def names(attempts):
    """The worker, and the name of the step, of each attempt."""
    return [(attempt.worker, attempt.closure.name) for attempt in attempts]


def finished(ledger, *attempts):
    for attempt in attempts:
        ledger = ledger.finish(attempt)
    return ledger


def test_nobody_gets_anything_before_a_worker_is_ready():
    ledger, attempts = ledger_of(steps=1, ready=[]).assign()
    assert attempts == ()
    ledger = ledger.worker_ready(1)
    assert ledger.ready == {1}
    assert names(ledger.assign()[1]) == [(1, 0)]


def test_steps_are_dealt_in_order_and_one_to_each_before_anybody_gets_two():
    ledger, attempts = ledger_of(workers=3, steps=8).assign()
    assert names(attempts) == [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4), (2, 5)]
    assert (ledger.queued, ledger.under_way) == (2, 6)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_worker_has_at_most_so_many_steps(depth):
    ledger, _ = ledger_of(workers=2, steps=10, depth=depth).assign()
    assert [len(steps) for steps in ledger.running] == [depth, depth]


def test_workers_take_turns_even_if_one_is_always_first_to_be_free():
    ledger = ledger_of(workers=3)
    taken = []
    for i in range(9):
        ledger, (attempt,) = ledger.add(Step(i)).assign()
        taken.append(attempt.worker)
        ledger = ledger.finish(attempt)
    assert taken == [0, 1, 2] * 3


def test_a_free_worker_gets_the_next_step():
    ledger, (_, attempt) = ledger_of(workers=2, steps=5, depth=1).assign()
    ledger, attempts = ledger.finish(attempt).assign()
    assert names(attempts) == [(attempt.worker, 2)]
    assert ledger.assign()[1] == ()


def test_what_a_lost_worker_had_comes_first_and_in_order():
    ledger, attempts = ledger_of(workers=2, steps=6).assign()
    ledger = ledger.worker_lost(0)
    assert [(each.closure.name, each.lost_workers) for each in ledger.queue] == [(0, 1), (2, 1), (4, 0), (5, 0)]
    assert ledger.ready == {1}
    ledger = finished(ledger, *(attempt for attempt in attempts if attempt.worker == 1))
    assert names(ledger.assign()[1]) == [(1, 0), (1, 2)]
    assert ledger.worker_lost(0) == ledger


def test_what_is_put_back_comes_first():
    ledger, (attempt,) = ledger_of(workers=1, steps=3, depth=1).assign()
    assert names(ledger.put_back(attempt).assign()[1]) == [(0, 0)]


def test_removing_and_cancelling():
    ledger, (attempt,) = ledger_of(workers=1, steps=4, depth=1).assign()
    ledger = ledger.worker_lost(0).remove(attempt.closure)
    assert [each.closure.name for each in ledger.queue] == [1, 2, 3]
    ledger = ledger.without_queue()
    assert (ledger.queued, ledger.under_way) == (0, 0)


def test_a_repeated_attempt_stays_with_its_worker_and_has_another_id():
    ledger, (first, second) = ledger_of(workers=1, steps=2).assign()
    ledger = ledger.retraces(first)
    assert (ledger.retracing, ledger.under_way) == (1, 2)
    ledger, again = ledger.repeat(first)
    assert ledger.find(first) is None
    assert (again.worker, again.closure) == (0, first.closure)
    assert again.id not in (first.id, second.id)
    assert (ledger.retracing, ledger.under_way) == (0, 2)
    assert finished(ledger, again, second).under_way == 0


def test_a_transition_leaves_the_ledger_before_it_as_it_was():
    before = ledger_of(workers=2, steps=3)
    after, attempts = before.assign()
    after.finish(attempts[0])
    after.worker_lost(1)
    assert (before.queued, before.under_way) == (3, 0)
    assert (after.queued, after.under_way, after.ready) == (0, 3, {0, 1})


# Staleness.


def test_without_staleness_steps_are_made_one_after_the_other():
    ledger = ledger_of(workers=3, steps=5, max_staleness=0)
    seen = []
    while ledger.queued:
        ledger, (attempt,) = ledger.assign()
        assert ledger.assign()[1] == ()
        ledger = ledger.finish(attempt)
        seen.append(attempt.closure.name)
    assert seen == [0, 1, 2, 3, 4]


def test_no_more_steps_are_under_way_than_may_be_overtaken():
    ledger, attempts = ledger_of(workers=5, steps=10, max_staleness=2).assign()
    assert len(attempts) == 3  # The last of them may be applied when two others are.
    assert ledger.assign()[1] == ()


def test_a_slow_step_holds_the_others_back_in_time():
    ledger, (slow, quick) = ledger_of(workers=2, steps=10, max_staleness=2).assign()
    ledger, (quick,) = ledger.finish(quick).assign()
    ledger = ledger.finish(quick)
    assert ledger.assign()[1] == ()  # Two others are through since the slow one began.
    assert len(ledger.finish(slow).assign()[1]) == 2


ACTIONS = st.lists(st.tuples(st.sampled_from(["finish", "finish", "finish", "lose", "put back"]), st.integers(0, 99)))


@settings(max_examples=300)
@given(workers=st.integers(1, 5), staleness=st.integers(0, 4), steps=st.integers(1, 25), actions=ACTIONS)
def test_no_step_is_ever_older_than_allowed_and_none_is_forgotten(workers, staleness, steps, actions):
    ledger = ledger_of(workers=workers, steps=steps, max_staleness=staleness)
    began: dict[Step, int] = {}  # how many steps had been applied when it began
    applied: list[Step] = []

    def hand_out(ledger):
        ledger, attempts = ledger.assign()
        for attempt in attempts:
            began[attempt.closure] = len(applied)
        assert not ledger.queued or not ledger.ready or ledger.under_way, "Nobody can ever go on."
        return ledger

    def under_way():
        return [each.attempt for steps in ledger.running for each in steps]

    def finish(attempt):
        assert len(applied) - began[attempt.closure] <= staleness
        applied.append(attempt.closure)
        return ledger.finish(attempt)

    ledger = hand_out(ledger)
    for action, number in actions:
        if not under_way():
            break
        attempt = under_way()[number % len(under_way())]
        if action == "finish":
            ledger = finish(attempt)
        elif action == "put back":
            ledger = ledger.put_back(attempt)
        else:
            ledger = hand_out(ledger.worker_lost(attempt.worker)).worker_ready(attempt.worker)
        ledger = hand_out(ledger)
    while under_way():
        ledger = hand_out(finish(under_way()[-1]))
    assert len(applied) == steps
    assert len(set(applied)) == steps


@given(workers=st.integers(1, 5), staleness=st.integers(0, 8), steps=st.integers(10, 30))
def test_as_many_steps_are_under_way_as_may_be(workers, staleness, steps):
    ledger = ledger_of(workers=workers, steps=steps, max_staleness=staleness)
    assert len(ledger.assign()[1]) == min(workers, staleness + 1)
