"""The folder of compiled programs."""

from __future__ import annotations

import os

from replicax.job.processes.compile_cache import keep_within


def program(folder, name, size, used_at):
    path = folder / f"{name}-cache"
    path.write_bytes(b"x" * size)
    os.utime(path, (used_at, used_at))
    return path


def test_a_folder_that_is_small_enough_or_not_there_is_left_alone(tmp_path):
    path = program(tmp_path, "one", 100, 1)
    assert keep_within(tmp_path, 100) == keep_within(tmp_path / "missing", 100) == 0
    assert path.exists()


def test_what_was_not_used_for_the_longest_time_goes_first(tmp_path):
    (tmp_path / "folder").mkdir()
    oldest, newest, middle = (program(tmp_path, n, 100, t) for n, t in [("a", 1), ("b", 30), ("c", 20)])
    os.utime(oldest, (40, 1))  # It was written first, but read a moment ago.
    assert keep_within(tmp_path, 280) == 1
    assert not middle.exists()
    assert oldest.exists()
    assert newest.exists()
    assert (tmp_path / "folder").exists()
