"""The Python files that travel with a script."""

from __future__ import annotations

from pathlib import Path

import pytest

import replicax.job.elsewhere.script_files as module
from replicax.errors import LaunchError
from replicax.job.elsewhere.script_files import packed_sources, unpack_sources


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_python_files_of_a_folder_arrive_as_they_are(tmp_path: Path):
    here, there = tmp_path / "here", tmp_path / "there"
    ours = ["train.py", "models/__init__.py", "models/deep/net.py"]
    others = ["data.csv", ".venv/lib/a.py", "env/pyvenv.cfg", "env/lib/b.py", "models/__pycache__/c.py", ".hidden/d.py"]
    write(here, *ours, *others)
    unpack_sources(packed_sources(here), str(there))
    assert files(there) == set(ours)
    assert (there / "models/deep/net.py").read_text() == "# models/deep/net.py\n"


def test_a_folder_that_has_more_than_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, "train.py", "other.py")
    monkeypatch.setattr(module, "_MOST_ENTRIES", 1)
    with pytest.raises(LaunchError, match=f"{tmp_path}.* more than 1 files and folders.*a folder of its own"):
        packed_sources(tmp_path)
    monkeypatch.setattr(module, "_MOST_ENTRIES", 2)
    monkeypatch.setattr(module, "_MOST_BYTES", 15)
    with pytest.raises(LaunchError, match="MiB of Python files"):
        packed_sources(tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    with pytest.raises(LaunchError, match=r"A file beside the script cannot be read: .*gone\.py"):
        packed_sources(tmp_path)
