"""The ledger: who gets which step, and how old a step's variables can become."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from replicax.parameter_server.scheduling.policy import Ledger


class Step:
    def __init__(self, name: Any):
        self.name = name

    def __repr__(self) -> str:
        return f"Step({self.name})"


def ledger_of(workers=2, steps=0, ready=None, **options):
    ledger = Ledger(workers, **options)
    for worker in range(workers) if ready is None else ready:
        ledger.worker_ready(worker)
    for i in range(steps):
        ledger.add(Step(i))
    return ledger


def given_out(ledger):
    """Names of the steps that each worker gets."""
    return [(worker, step.name) for worker, step in ledger.assignments()]


def test_nobody_gets_anything_before_a_worker_is_ready():
    ledger = ledger_of(steps=1, ready=[])
    assert given_out(ledger) == []
    ledger.worker_ready(1)
    assert ledger.ready == {1}
    assert given_out(ledger) == [(1, 0)]


def test_steps_are_dealt_in_order_and_one_to_each_before_anybody_gets_two():
    ledger = ledger_of(workers=3, steps=8)
    assert given_out(ledger) == [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4), (2, 5)]
    assert (ledger.queued, ledger.under_way) == (2, 6)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_worker_has_at_most_so_many_steps(depth):
    ledger = ledger_of(workers=2, steps=10, depth=depth)
    given_out(ledger)
    assert [len(ledger.held_by(worker)) for worker in range(2)] == [depth, depth]


def test_workers_take_turns_even_if_one_is_always_first_to_be_free():
    ledger = ledger_of(workers=3)
    taken = []
    for i in range(9):
        ledger.add(Step(i))
        ((worker, step),) = ledger.assignments()
        taken.append(worker)
        ledger.finished(worker, step)
    assert taken == [0, 1, 2] * 3


def test_a_free_worker_gets_the_next_step():
    ledger = ledger_of(workers=2, steps=5, depth=1)
    (_, (worker, step)) = ledger.assignments()
    ledger.finished(worker, step)
    assert given_out(ledger) == [(worker, 2)]
    assert given_out(ledger) == []


def test_what_a_lost_worker_had_comes_first_and_in_order():
    ledger = ledger_of(workers=2, steps=6)
    given_out(ledger)
    lost = ledger.worker_lost(0)
    assert [step.name for step in lost] == [0, 2]
    assert ledger.ready == {1}
    for step in ledger.held_by(1):
        ledger.finished(1, step)
    assert given_out(ledger) == [(1, 0), (1, 2)]
    assert ledger.worker_lost(0) == []


def test_what_is_put_back_comes_first():
    ledger = ledger_of(workers=1, steps=3, depth=1)
    ((_, step),) = ledger.assignments()
    ledger.put_back(0, step)
    assert given_out(ledger) == [(0, 0)]


def test_removing_and_cancelling():
    ledger = ledger_of(workers=1, steps=4, depth=1)
    given_out(ledger)
    (step,) = ledger.worker_lost(0)
    ledger.remove(step)
    assert [step.name for step in ledger.cancel_queued()] == [1, 2, 3]
    assert (ledger.queued, ledger.under_way) == (0, 0)


# Staleness.


def test_without_staleness_steps_are_made_one_after_the_other():
    ledger = ledger_of(workers=3, steps=5, max_staleness=0)
    seen = []
    while ledger.queued:
        ((worker, step),) = ledger.assignments()
        assert ledger.assignments() == []
        ledger.finished(worker, step)
        seen.append(step.name)
    assert seen == [0, 1, 2, 3, 4]


def test_a_slow_step_holds_the_others_back_in_time():
    ledger = ledger_of(workers=2, steps=10, max_staleness=2)
    (slow_worker, slow), (worker, step) = ledger.assignments()
    ledger.finished(worker, step)
    ((worker, step),) = ledger.assignments()
    ledger.finished(worker, step)
    assert ledger.assignments() == []  # Two others are through since the slow one began.
    ledger.finished(slow_worker, slow)
    assert len(ledger.assignments()) == 2


ACTIONS = st.lists(st.tuples(st.sampled_from(["finish", "finish", "finish", "lose", "put back"]), st.integers(0, 99)))


@settings(max_examples=300)
@given(workers=st.integers(1, 5), staleness=st.integers(0, 4), steps=st.integers(1, 25), actions=ACTIONS)
def test_no_step_is_ever_older_than_allowed_and_none_is_forgotten(workers, staleness, steps, actions):
    ledger = ledger_of(workers=workers, steps=steps, max_staleness=staleness)
    began: dict[Step, int] = {}  # how many steps had been applied when it began
    applied: list[Step] = []

    def hand_out():
        for _, step in ledger.assignments():
            began[step] = len(applied)
        assert not ledger.queued or not ledger.ready or ledger.under_way, "Nobody can ever go on."

    def under_way():
        return [(worker, step) for worker in range(workers) for step in ledger.held_by(worker)]

    def finish(worker, step):
        assert len(applied) - began[step] <= staleness
        applied.append(step)
        ledger.finished(worker, step)

    hand_out()
    for action, number in actions:
        if not under_way():
            break
        worker, step = under_way()[number % len(under_way())]
        if action == "finish":
            finish(worker, step)
        elif action == "put back":
            ledger.put_back(worker, step)
        else:
            ledger.worker_lost(worker)
            hand_out()
            ledger.worker_ready(worker)
        hand_out()
    while under_way():
        finish(*under_way()[-1])
        hand_out()
    assert len(applied) == steps
    assert len(set(applied)) == steps


@given(workers=st.integers(1, 5), staleness=st.integers(0, 8), steps=st.integers(10, 30))
def test_as_many_steps_are_under_way_as_may_be(workers, staleness, steps):
    ledger = ledger_of(workers=workers, steps=steps, max_staleness=staleness)
    assert len(ledger.assignments()) == min(workers, staleness + 1)
