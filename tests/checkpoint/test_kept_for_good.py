"""Which old checkpoints are kept for good."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import replicax as rx
from replicax.checkpoint.metadata import FILE
from replicax.errors import ArgumentError, CheckpointError

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
        os.utime(manager.path(step) / FILE, (written, written))
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
