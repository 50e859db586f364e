"""The soak of elastic jobs finds what it looks for: each fault of a history, planted, is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from replicax.testing.elastic_job import Membership, Run
from tests.soak import elastic_history as history
from tests.soak.elastic_history import Fault, Line
from tests.soak.elastic_training import counts_after, rows_of

RUNS = [Run(0, 0, 10), Run(1, 0, 11)]


def step(number: int, world: int, runs: Sequence[Run] = RUNS, at: float | None = None) -> list[Line]:
    rows, share = rows_of(number), 24 // len(runs)
    parts = tuple(tuple(rows[i * share : (i + 1) * share]) for i in range(len(runs)))
    members = tuple(run.worker for run in runs)
    told = [float(number) if at is None else at, number, world, members, tuple(rows)]
    return [Line(told[0], run, *told[1:4], part, told[4]) for run, part in zip(runs, parts, strict=True)]


def steps(numbers: range, world: int, runs: Sequence[Run] = RUNS) -> list[Line]:
    return [line for number in numbers for line in step(number, world, runs)]


def wrong(lines: Sequence[Line], number: int) -> list[str]:
    return history.wrong_rows(lines, [counts_after(number)], number)


# Worker 1 dies in step 3, which worker 0 repeats alone; its replacement is there from step 5 on.
WHOLE = [*steps(range(3), 1), *steps(range(3, 5), 2, RUNS[:1]), *steps(range(5, 8), 3, [RUNS[0], Run(1, 1, 12)])]


def test_nothing_is_wrong_with_a_whole_history():
    assert wrong(WHOLE, 8) == []
    assert history.split_brains(WHOLE) == []


def test_the_counts_of_fit_are_those_of_the_last_epoch():
    assert counts_after(100, fit=True).tolist() == [1] * 1200
    assert counts_after(101, fit=True).sum() == 24
    assert counts_after(101).sum() == 101 * 24


def test_a_lost_and_a_repeated_row_are_found():
    first, *others = WHOLE
    lost = dataclasses.replace(first, rows=first.rows[1:], own=first.own[1:])
    twice = dataclasses.replace(first, rows=(*first.rows, first.rows[0]))
    by_another = dataclasses.replace(first, own=(*first.own, others[0].own[0]))
    for each in (lost, twice, by_another):
        assert len(wrong([each, *others], 8)) == 1


def test_a_lost_and_a_repeated_step_are_found():
    repeated = [*WHOLE[:4], WHOLE[2], *WHOLE[4:]]
    assert any("step 1 follows step 1" in each for each in wrong(repeated, 8))
    without = [line for line in WHOLE if line.step != 4]
    assert "nobody has completed step 4" in wrong(without, 8)
    assert wrong(WHOLE, 7)


def test_other_counts_at_the_end_are_found():
    counts = counts_after(8)
    counts[rows_of(0)[0]] += 1
    assert history.wrong_rows(WHOLE, [counts], 8) == ["worker 0 at the end: other counts"]


def test_two_groups_in_one_world_and_two_worlds_that_go_on_are_found():
    other = [*step(3, 2, [Run(1, 0, 11)], at=3.5)]
    assert history.split_brains([*WHOLE, *other])
    longer = steps(range(3, 6), 1, [RUNS[1]])  # It goes on alone in the world of before.
    assert any("world 1" in each for each in history.split_brains([*WHOLE, *longer]))


def test_recovery_ends_with_the_first_step_without_the_struck_run():
    lines = sorted(WHOLE, key=lambda line: line.time)
    fault = Fault("kill", "steady", RUNS[1], 1.5)
    assert history.recovery_s(fault, lines, [fault]) == 1.5
    newcomer = Fault("kill", "join", Run(1, 7, 99), 1.5)
    assert history.recovery_s(newcomer, lines, [newcomer]) is None


def test_one_that_was_stopped_may_come_back_before_it_is_missed():
    lines = [*steps(range(3), 1), *step(3, 1, at=8.5)]
    stop, cut, kill = (Fault(kind, "steady", RUNS[1], 2.5) for kind in ("stop", "cut", "kill"))
    assert [history.recovery_s(each, lines, [each]) for each in (stop, cut, kill)] == [6.0, 6.0, None]


def test_the_time_out_of_a_stop_is_no_part_of_a_recovery():
    kill, stop = Fault("kill", "two", RUNS[0], 10.0), Fault("stop", "two", RUNS[1], 10.0)
    assert history.waited_s(stop, 8.5, [stop], 7.0) == history.waited_s(kill, 8.5, [kill, stop], 7.0) == 7.0
    assert history.waited_s(kill, 1.5, [kill], 7.0) == 0.0
    assert history.waited_s(kill, 1.5, [dataclasses.replace(stop, time=2.0)], 7.0) == 0.0
    assert history.waited_s(kill, 5.0, [dataclasses.replace(stop, time=6.0)], 7.0) == 3.0


def test_a_survivor_that_has_ended_is_found():
    ended: dict[Run, int | None] = {RUNS[1]: 137, RUNS[0]: 71, Run(1, 1, 12): 0}
    membership = Membership({}, ended, (), ())
    fault = Fault("kill", "steady", RUNS[1], 2.5)
    assert history.strangers_lost(membership, [fault], WHOLE) == [RUNS[0]]
