"""Snapshots in memory."""

from __future__ import annotations

import itertools
import logging

import jax.numpy as jnp
import pytest

import replicax as rx
import replicax.runtime.activity as activity
from replicax.checkpoint import snapshots
from replicax.checkpoint.snapshots import MemorySnapshots
from replicax.checks.environment_names import SNAPSHOTS


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setenv(SNAPSHOTS, str(folder))
    return folder


class Training:
    """A variable that counts steps, and its manager; a new one is the training started again."""

    def __init__(self, folder, interval=1000, shape=(3,), every=1):
        self.w = rx.Variable(jnp.zeros(shape))
        self.manager = rx.CheckpointManager(
            folder / "checkpoints", objects={"w": self.w}, save_interval_steps=interval, async_=False
        )
        if self.manager.snapshots._is_on:
            self.manager.snapshots._pause = self.manager.snapshots._agreed = every

    def go(self, first, last):
        """Makes steps; waits for each snapshot, so that the next is due after one more."""
        for step in range(first, last + 1):
            self.w.assign_add(jnp.ones_like(self.w.value))
            self.manager.save(step)
            if self.manager.snapshots._is_on:
                self.manager.snapshots.wait()
                self.manager.snapshots._agreed = self.manager.snapshots._agreed and 1
        return self


def test_a_training_goes_on_from_its_snapshot(tmp_path):
    Training(tmp_path).go(1, 7)
    again = Training(tmp_path)
    assert again.manager.restore_or_initialize() == 7
    assert again.w.numpy().tolist() == [7.0] * 3
    assert again.manager.snapshots.restored_path == again.manager.snapshots.path(7)
    assert again.manager.all_steps() == []  # Nothing of it is on the disk.


def test_restore_takes_the_newest_too(tmp_path):
    Training(tmp_path).go(1, 7)
    again = Training(tmp_path)
    again.manager.restore()
    assert again.w.numpy().tolist() == [7.0] * 3
    assert again.manager.snapshots.restored_path == again.manager.snapshots.path(7)


def test_there_is_one_snapshot_at_a_time(tmp_path, memory):
    Training(tmp_path).go(1, 9)
    (folder,) = memory.iterdir()
    assert [path.name for path in folder.iterdir()] == ["00000009"]


def test_a_newer_checkpoint_counts(tmp_path):
    Training(tmp_path, interval=8).go(1, 8)
    again = Training(tmp_path)
    assert again.manager.restore_or_initialize() == 8
    assert again.manager.snapshots.restored_path is None
    assert again.manager.snapshots.latest() is None  # The older snapshot is gone.


def test_a_step_that_is_restored_by_name_makes_the_snapshot_void(tmp_path):
    Training(tmp_path, interval=5).go(1, 9)
    again = Training(tmp_path)
    again.manager.restore(5)
    third = Training(tmp_path)
    assert third.manager.restore_or_initialize() == 5


def test_a_training_that_fails_after_its_snapshot_goes_back_to_its_checkpoint(tmp_path):
    Training(tmp_path, interval=5).go(1, 9)
    assert Training(tmp_path).manager.restore_or_initialize() == 9
    third = Training(tmp_path)
    assert third.manager.restore_or_initialize() == 5
    third.go(6, 9)
    assert Training(tmp_path).manager.restore_or_initialize() == 9  # There is a new one.


def test_a_snapshot_of_another_shape_is_not_used(tmp_path, caplog):
    Training(tmp_path).go(1, 7)
    again = Training(tmp_path, shape=(4,))
    with caplog.at_level(logging.WARNING):
        assert again.manager.restore_or_initialize() is None
    assert "The snapshot in memory of step 7 is not used, but the newest checkpoint: " in caplog.text
    assert again.w.numpy().tolist() == [0.0] * 4


def test_a_damaged_snapshot_is_not_used(tmp_path, caplog):
    training = Training(tmp_path, interval=5).go(1, 9)
    folder = training.manager.snapshots.path(9)
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + b"\xff\xff")
    again = Training(tmp_path)
    assert again.manager.restore_or_initialize() == 5
    assert "is not used" in caplog.text


def test_half_a_snapshot_is_none(tmp_path, monkeypatch):
    training = Training(tmp_path).go(1, 6)

    def stop(*_):
        raise OSError("killed")

    monkeypatch.setattr("replicax.checkpoint.writing.commit", stop)
    training.go(7, 8)
    monkeypatch.undo()
    monkeypatch.setenv(SNAPSHOTS, str(tmp_path / "memory"))
    assert Training(tmp_path).manager.restore_or_initialize() == 6


def test_a_failure_ends_snapshots_and_not_the_training(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(snapshots, "_ROOM", 1e30)
    with caplog.at_level(logging.INFO):
        training = Training(tmp_path, interval=9).go(1, 9)
    assert caplog.text.count("No snapshots are taken in memory any more: ") == 1
    assert "bytes left, and a snapshot has 12" in caplog.text
    assert training.manager.all_steps() == [9]


@pytest.mark.parametrize("value", ["", "0", "relative", "/does/not/exist"])
def test_without_memory_there_are_none(tmp_path, monkeypatch, value):
    monkeypatch.setenv(SNAPSHOTS, value)
    assert not any(MemorySnapshots.of(tmp_path).is_due() for _ in range(100))
    training = Training(tmp_path, interval=5).go(1, 7)
    assert training.manager.all_steps() == [5]
    assert Training(tmp_path).manager.restore_or_initialize() == 5


def test_the_time_between_snapshots_follows_from_their_cost(tmp_path, memory):
    time_now = [0.0]
    snapshots = MemorySnapshots(tmp_path, memory, clock=lambda: time_now[0])
    w = rx.Variable(jnp.zeros(3))
    checkpoint = rx.Checkpoint(w=w)
    taken = []

    def contents():
        found = checkpoint.contents()
        time_now[0] += 0.03  # what a snapshot takes
        return found

    for call in range(1, 4000):
        time_now[0] += 0.01
        if snapshots.is_due():
            taken.append(call)
            snapshots.take(call, contents)
            snapshots.wait()
    assert taken[:2] == [4, 20]
    gaps = [after - before for before, after in itertools.pairwise(taken[2:])]
    assert gaps
    assert all(500 <= gap <= 650 for gap in gaps), gaps  # 6 seconds of steps that take 10 ms


def test_snapshots_that_cost_nearly_nothing_are_a_second_apart(tmp_path, memory):
    time_now = [0.0]
    snapshots = MemorySnapshots(tmp_path, memory, clock=lambda: time_now[0])
    checkpoint = rx.Checkpoint(w=rx.Variable(1.0))
    taken = []
    for call in range(1, 400):
        time_now[0] += 0.01
        if snapshots.is_due():
            taken.append(call)
            snapshots.take(call, checkpoint.contents)
            snapshots.wait()
    assert taken == [4, 20, 36, 136, 236, 336]


def test_whoever_waits_for_a_snapshot_is_seen_to(tmp_path, monkeypatch):
    training, phases = Training(tmp_path).go(1, 3), []
    monkeypatch.setattr(snapshots.threading.Thread, "join", lambda self: phases.append(activity.now.at[0]))
    training.manager.snapshots.take(4, training.manager.checkpoint.contents)
    training.manager.snapshots.wait()
    assert phases == [activity.CHECKPOINT]
