"""When a manager saves, and which checkpoints it keeps."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import replicax as rx
import replicax.contracts.group as groups
from replicax.checkpoint import NumberedCheckpoint
from replicax.checkpoint.policies import (
    Best,
    CounterGrowth,
    EveryHours,
    EverySeconds,
    EverySteps,
    Improved,
    Newest,
)
from replicax.contracts.group import Group, World
from replicax.errors import ArgumentError, CheckpointError
from tests.clock import Clock

HOUR = 3600.0


def hourly(folder: Path, steps: range, start: float, each: float, hours: float = 2.0) -> rx.CheckpointManager:
    """Saves steps as if each had been written so many hours after the one before."""
    w = rx.Variable(0.0)
    manager = rx.CheckpointManager(
        folder, max_to_keep=2, async_=False, objects={"w": w}, keep_checkpoint_every_n_hours=hours
    )
    for step in steps:
        manager.save(step)
        written = start + step * each * HOUR
        os.utime(manager.path(step) / "metadata.json", (written, written))
    return manager


def test_one_every_so_many_hours_is_kept(tmp_path: Path):
    manager = hourly(tmp_path, range(1, 9), time.time() + 60.0, 1.0)  # the manager is made within this minute
    # After 2, 4 and 6 hours; 7 and 8 are the newest. 1, 3 and 5 came too early.
    assert manager.all_steps() == [2, 4, 6, 7, 8]
    assert [Path(path).name for path in manager.checkpoints] == ["00000007", "00000008"]


def test_a_later_run_goes_on_with_it(tmp_path: Path):
    start = time.time() + 60.0
    first = hourly(tmp_path, range(1, 5), start, 1.0)
    assert first.all_steps() == [2, 3, 4]
    second = hourly(tmp_path, range(5, 9), start, 1.0)
    assert second.all_steps() == [2, 4, 6, 7, 8]
    assert second.latest_checkpoint == str(second.path(8))


def test_damage_is_told(tmp_path: Path):
    manager = hourly(tmp_path, range(1, 4), time.time(), 1.0)
    (tmp_path / "kept.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"kept\.json cannot be read: .* has no 'last'"):
        _ = manager.checkpoints


@pytest.mark.parametrize("hours", [0, -1.0, True, "2"])
def test_hours_are_a_number_above_zero(tmp_path: Path, hours: object):
    with pytest.raises(ArgumentError, match="number above 0"):
        rx.CheckpointManager(tmp_path, objects={"n": 1}, keep_checkpoint_every_n_hours=hours)


# When to save.


class Chiefs(Group):
    """A group of two whose chief says what it is told to."""

    says = None

    def __init__(self):
        super().__init__()
        self.looks = 0

    @property
    def world(self):
        return World(0, 1, (0, 1), ("worker:0", "worker:1"))

    def exchange(self, what, value, before=None):
        self.looks += 1
        return [self.says(value), value]


def test_a_process_alone_saves_when_the_seconds_have_passed():
    clock = Clock()
    policy = EverySeconds(10.0, clock=clock)
    due = []
    for second in range(1, 41):
        clock.now = float(second)
        if policy.is_due(None):
            due.append(second)
            policy.restart()
    assert due == [10, 20, 30, 40]


@pytest.mark.parametrize("each", [0.01, 0.3, 4.0])
def test_processes_look_seldom_and_save_in_time(monkeypatch, each):
    """The chief's answer counts, whatever the own clock says; both make the same calls."""
    chiefs_clock, own_clock, group = Clock(), Clock(), Chiefs()
    chief, own = EverySeconds(10.0, clock=chiefs_clock), EverySeconds(10.0, clock=own_clock)
    monkeypatch.setattr(groups, "_present", group)
    answers: list[int] = []
    saves = []
    for call in range(1, int(40 / each)):
        chiefs_clock.now, own_clock.now = call * each, 0.0
        group.says = lambda value: answers.append(value) or value
        due = chief.is_due(None)
        group.says = lambda value: answers.pop()
        assert own.is_due(None) is due
        if due:
            saves.append(call * each)
            for policy in (chief, own):
                policy.restart()
    assert answers == []
    pauses = [later - earlier for earlier, later in zip([0.0, *saves], saves, strict=False)]
    assert pauses
    assert all(10.0 <= pause < 10.0 + 2 * each for pause in pauses), pauses
    assert group.looks / 2 <= 20 * (len(saves) + 1)


def test_a_joining_worker_looks_when_the_others_do():
    clock = Clock()
    others, newcomer = EverySeconds(10.0, clock=clock), EverySeconds(10.0, clock=clock)
    others._left, others._calls = 7, 2
    newcomer.set_state(others.get_state())
    assert newcomer.get_state() == [7, 2]


def test_a_measure_that_improves_is_saved():
    value = rx.Variable(1.0)
    highest, lowest = Improved(value), Improved(lambda: value.value, highest=False)
    found = []
    for measure in (1.0, 2.0, 2.0, float("nan"), 0.5, 3.0):
        value.assign(measure)
        found.append((highest.is_due(None), lowest.is_due(None)))
        for policy in (highest, lowest):
            policy.restart()
    assert [high for high, _ in found] == [True, True, False, False, False, True]
    assert [low for _, low in found] == [True, False, False, False, True, False]
    again = Improved(value)
    again.set_state(highest.get_state())
    assert not again.is_due(None)


def test_the_chiefs_measure_counts(monkeypatch):
    group = Chiefs()
    group.says = lambda value: 5.0
    monkeypatch.setattr(groups, "_present", group)
    policy = Improved(lambda: 1.0)
    policy.restart()
    assert policy.is_due(1)
    policy.restart()
    assert not policy.is_due(2)


def test_one_policy_suffices_and_all_are_asked(tmp_path):
    asked = []

    class Never(EverySteps):
        def is_due(self, step):
            asked.append(step)
            return False

    manager = rx.CheckpointManager(tmp_path, objects={"n": 1}, save_when=[EverySteps(2), Never(1)], keep=Newest(None))
    for step in range(1, 6):
        manager.save(step)
    manager.close()
    assert manager.all_steps() == [2, 4]
    assert asked == [1, 2, 3, 4, 5]


def test_a_growth_goes_on_in_a_worker_that_joins():
    count = [0]
    policy, joined = (CounterGrowth(lambda: count[0], 3) for _ in range(2))
    policy.restart()
    joined.set_state(policy.get_state())
    count[0] = 2
    assert not joined.is_due(None)
    count[0] = 3
    assert joined.is_due(None)


# What to keep.


def saved(*measures: float | None) -> list[NumberedCheckpoint]:
    class Saved(NumberedCheckpoint):
        notes = property(lambda self: {} if measures[self.number] is None else {"measure": measures[self.number]})

    return [Saved(Path(str(i)), i, None) for i in range(len(measures))]


def test_the_best_are_kept_and_those_without_a_measure_are_too():
    found = saved(0.5, None, 0.9, float("nan"), 0.7, 0.9)
    assert sorted(Best(2, lambda: 0.0).kept(found)) == [1, 2, 5]
    assert sorted(Best(3, lambda: 0.0).kept(found)) == [1, 2, 4, 5]
    assert sorted(Best(1, lambda: 0.0, highest=False).kept(found)) == [0, 1]
    assert Best(2, lambda: 0.0, name="other").kept(saved(1.0, 2.0, 3.0)) == [0, 1, 2]


def test_what_one_policy_keeps_is_kept(tmp_path):
    loss = rx.Variable(0.0)

    def keep():
        return [Newest(2), Best(1, loss, highest=False, name="loss"), EverySteps(5)]

    losses = [9.0, 8.0, 1.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.5]
    for steps in (range(1, 7), range(7, 11)):  # The second run knows the measures of the first.
        with rx.CheckpointManager(tmp_path, objects={"n": 1}, keep=keep(), async_=False) as manager:
            manager.restore_or_initialize()
            for step in steps:
                loss.assign(losses[step - 1])
                manager.save(step)
    assert manager.all_steps() == [3, 5, 9, 10]


def test_hours_count_for_what_nothing_else_keeps(tmp_path):
    keep = [EverySteps(4), EveryHours(1.0)]
    manager = rx.CheckpointManager(tmp_path, objects={"n": 1}, keep=keep, async_=False)
    start = time.time()
    for step in range(1, 7):
        manager.save(step)
        os.utime(manager.path(step) / "metadata.json", (start + step * 0.6 * HOUR, start + step * 0.6 * HOUR))
    # After 1.2 h and 2.4 h, which is step 4 by itself, and 3.0 h; 6 is the new one.
    assert manager.all_steps() == [2, 4, 5, 6]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"keep": 3}, "`keep` is a KeepPolicy"),
        ({"keep": []}, "`keep` is a KeepPolicy"),
        ({"save_when": [Newest(2)]}, "`save_when` is a SavePolicy"),
        ({"keep": Newest(2), "max_to_keep": 5}, "leave out `max_to_keep`"),
        ({"keep": Newest(2), "keep_checkpoint_every_n_hours": 5}, "leave out"),
        ({"save_when": EverySteps(2), "save_interval_steps": 2}, "leave out `save_interval_steps`"),
        ({"keep": [Best(1, lambda: 1.0), Best(2, lambda: 2.0)]}, "Two measures are called 'measure'"),
    ],
)
def test_arguments_that_say_two_things_are_refused(tmp_path, arguments, words):
    with pytest.raises(ArgumentError, match=words):
        rx.CheckpointManager(tmp_path, objects={"n": 1}, **arguments)


@pytest.mark.parametrize("make", [lambda: Best(0, lambda: 1.0), lambda: Best(1, 7), lambda: EverySeconds(0)])
def test_bad_policies_are_refused(make):
    with pytest.raises(ArgumentError):
        make()


def test_a_measure_is_one_number():
    with pytest.raises(ArgumentError, match="one number"):
        Improved(lambda: [1.0, 2.0]).is_due(1)


def test_an_improvement_is_one_over_the_run_before(tmp_path: Path):
    accuracy = rx.Variable(0.0)
    saved = []
    for part in ([0.5, 0.9], [0.1, 0.2, 0.95]):
        policy = Improved(accuracy)
        objects = {"n": 1}
        with rx.CheckpointManager(tmp_path, objects=objects, save_when=policy, max_to_keep=1) as manager:
            start = manager.restore_or_initialize() or 0
            for step, value in enumerate(part, start + 1):
                accuracy.assign(value)
                if manager.save(step):
                    saved.append(value)
    assert saved == pytest.approx([0.5, 0.9, 0.95])
    with pytest.raises(ArgumentError, match="belongs to one CheckpointManager"):
        rx.CheckpointManager(tmp_path, objects={"n": 1}, save_when=policy)


def test_what_the_user_wrote_is_named():
    with pytest.raises(ArgumentError, match="`hours` is"):
        EveryHours(-1)
    with pytest.raises(ArgumentError, match="`measure` of a policy failed: ZeroDivisionError"):
        Improved(lambda: 1 / 0).is_due(1)


def test_a_damaged_checkpoint_spoils_no_other(tmp_path: Path):
    measure = rx.Variable(0.0)

    def manager() -> rx.CheckpointManager:
        keep, when = [Best(1, measure), Newest(1)], Improved(measure)
        return rx.CheckpointManager(tmp_path, objects={"m": measure}, async_=False, keep=keep, save_when=when)

    first = manager()
    for step in (1, 2):
        measure.assign(step)
        first.save(step)
    (first.path(2) / "metadata.json").write_text("{")
    measure.assign(3.0)
    assert first.save(3)
    assert first.all_steps() == [2, 3]  # How good the damaged one is, is not known.
    again = manager()
    again.restore(3)
    measure.assign(2.5)
    assert again.save(4) is None
