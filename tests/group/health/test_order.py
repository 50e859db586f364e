"""The order of calls: equal sequences never raise an alarm, whoever is ahead; each difference does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

import replicax.runtime.call_order as order_module
from replicax.errors import ExitCode
from replicax.group.health.diagnosis import DONE, ProblemKind, WorkerObservation, disagrees, diverged
from replicax.group.health.status import Status
from replicax.runtime.call_order import CallDescription, Order, RecordedCall, order_from, recorded_call_from

PROGRAMS = [
    CallDescription.of("A", "program 1"),
    CallDescription.of("B", "program 2"),
    CallDescription.of("reduction", "float32(2,)"),
]
calls = st.lists(st.integers(0, len(PROGRAMS) - 1), max_size=40)


def order_of(numbers: Sequence[int]) -> Order:
    order = Order()
    for number in numbers:
        order.note(PROGRAMS[number])
    return order


def seen(order: Order, ended: str = "") -> WorkerObservation:
    return WorkerObservation("worker", "", Status("step", ended=ended, order=order.last))


def disagreement(mine: Order, theirs: Order, ended: str = "", their_end: str | None = None) -> bool:
    """Whether a worker that has made the calls `mine` finds that another has made others."""
    workers = [seen(mine, ended), seen(theirs, ended if their_end is None else their_end)]
    return disagrees(mine, 0, workers) is not None


@given(calls, st.data())
def test_equal_sequences_raise_no_alarm_at_whatever_times_they_are_seen(made: list[int], data: st.DataObject):
    one, other = (order_of(made[: data.draw(st.integers(0, len(made)))]) for _ in range(2))
    for ends in [("", ""), (DONE, ""), ("", DONE), (DONE, "RuntimeError: x"), ("RuntimeError: x", DONE)]:
        assert not disagreement(one, other, *ends)
    assert not disagreement(order_of(made), order_of(made), DONE)


@given(calls, st.sampled_from(["swapped", "missing", "extra", "another"]), st.data())
def test_each_difference_is_found_and_named(made: list[int], fault: str, data: st.DataObject):
    at = data.draw(st.integers(0, len(made)))
    new = data.draw(st.integers(0, len(PROGRAMS) - 1))
    changed = {
        "swapped": [*made[:at], *made[at : at + 2][::-1], *made[at + 2 :]],
        "missing": [*made[:at], *made[at + 1 :]],
        "extra": [*made[:at], new, *made[at:]],
        "another": [*made[:at], new, *made[at + 1 :]],
    }[fault]
    one, other = order_of(made), order_of(changed)
    assert disagreement(one, other, DONE) == disagreement(other, one, DONE) == (made != changed)
    if made == changed:
        return
    both = min(len(made), len(changed))
    first = next((i for i in range(both) if made[i] != changed[i]), both)
    mine, theirs = one.difference(other.last, other.get)
    assert mine == (one.get(first + 1) if first < len(made) else None)
    assert theirs == (other.get(first + 1) if first < len(changed) else None)
    # Before the end, the one that is ahead sees it as soon as both have made a call that differs.
    if first < both:
        for i in range(first + 1, len(changed) + 1):
            behind = order_of(changed[:i])
            assert disagreement(one, behind) or disagreement(behind, one)


def test_a_worker_that_has_made_one_call_more_is_only_known_when_all_have_ended():
    one, other = order_of([0, 1]), order_of([0, 1, 0])
    assert not disagreement(one, other)
    assert not disagreement(one, other, DONE, "")
    assert disagreement(one, other, DONE)
    assert disagrees(one, 0, [seen(one, DONE), WorkerObservation("unreachable")]) is None
    found = diverged(0, 1, [seen(one, DONE), seen(other, DONE)], *one.difference(other.last, other.get))
    assert "as call number 3, worker nothing more and worker 'A' (program 1)" in found.reason


def test_the_alarm_is_of_different_programs():
    one, other = order_of([0, 1, 0]), order_of([0, 0])
    workers = [WorkerObservation(f"worker:{i}", "", seen(order).status) for i, order in enumerate([one, other])]
    mine, theirs = one.difference(other.last, other.get)
    found = diverged(0, 1, workers, mine, theirs)
    assert found == diverged(1, 0, workers, theirs, mine)
    assert (found.kind, found.culprits, found.exit_code) == (ProblemKind.DIVERGED, (0, 1), ExitCode.DIVERGED)
    assert "call number 2, worker:0 'B' (program 2) and worker:1 'A' (program 1); all workers must" in found.reason
    assert "where that began is too long ago" in diverged(0, 1, workers, None, None).reason


@pytest.mark.parametrize(
    ("mine", "theirs", "count", "said"),
    [
        ("'save'", "'step' (program 1)", 2, "Only worker:0 called 'save'; call it on every worker. worker:0 (address"),
        ("'step' (program 1)", "'save'", 2, "Only worker:1 called 'save'; call it on every worker. "),
        ("'step' (program 1)", None, 2, "Only worker:0 called 'step' (program 1); call it"),
        ("'save'", "'step' (program 1)", 3, "worker:1 did not, but worker:0 called 'save'; call it on every worker. "),
        ("'A' (program 1)", "'B' (program 2)", 2, "worker:0 (address unknown), worker:1"),
        ("'save'", "'evaluate'", 2, "worker:0 (address unknown), worker:1"),
    ],
)
def test_a_call_that_one_worker_makes_alone_comes_first(mine: str, theirs: str | None, count: int, said: str):
    workers = [WorkerObservation(f"worker:{i}") for i in range(count)]
    calls = [None if each is None else RecordedCall(1, 7, each) for each in (mine, theirs)]
    assert diverged(0, 1, workers, *calls).reason.startswith(said)


def test_what_is_too_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(order_module, "_REMEMBERED", 8)
    one, other = order_of([0] + [1] * 20), order_of([2] + [1] * 20)
    assert one.get(13) is None
    assert one.get(14) is not None
    assert one.get(21) is not None
    assert one.get(22) is None
    assert not one.contradicts((13, 1))
    assert one.contradicts(other.last)
    mine, theirs = one.difference(other.last, other.get)
    assert mine is not None
    assert theirs is not None
    assert mine.program == theirs.program  # not where it began
    workers = [seen(one), seen(other)]
    assert "where that began is too long ago" in diverged(0, 1, workers, mine, theirs).reason
    assert one.difference(other.last, lambda number: None) == (None, None)


def test_a_program_is_the_same_in_all_processes():
    assert CallDescription.of("train", "program 1").token == 187078467999236946
    assert len({CallDescription.of(name, what).token for name in "ab" for what in ("", "1", "2")}) == 6
    assert CallDescription.of("train").words == "'train'"


@pytest.mark.parametrize("document", [None, 1, "ab", [1], [1, 2, 3], [1, True], [1, "2"], [1.0, 2]])
def test_what_is_no_order_is_refused(document: object):
    with pytest.raises(ValueError, match="not the number and digest"):
        order_from(document)
    if document is not None:
        with pytest.raises(ValueError, match="not a call"):
            recorded_call_from(document)


def test_calls_travel_as_json():
    assert order_from([3, 4]) == (3, 4)
    assert recorded_call_from([3, 4, "x", "y=1"]) == RecordedCall(3, 4, "x", "y=1")
    assert recorded_call_from(None) is None
