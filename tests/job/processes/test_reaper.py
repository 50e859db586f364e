from __future__ import annotations

from pathlib import Path

from replicax.job.processes import reaper_main


def test_what_the_launcher_has_taken_back_stays(tmp_path: Path):
    left, kept = tmp_path / "left", tmp_path / "kept"
    for folder in (left, kept):
        folder.mkdir()
    reaper_main.main([f"+{left}\n", f"+{kept}\n", f"-{kept}\n"])
    assert not left.exists()
    assert kept.exists()
