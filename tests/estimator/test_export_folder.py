"""The folder of an exporter: each export is complete or absent, and old ones go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicax.errors import ArgumentError
from replicax.estimator.exporters import ExportFolder


def write(base: str) -> str:
    path = Path(base) / "123"
    path.mkdir(parents=True)
    (path / "program").write_text("code")
    return str(path)


def test_exports_are_named_by_the_time_each_later_than_the_one_before(tmp_path, monkeypatch):
    folder = ExportFolder(tmp_path / "latest")
    assert folder.exports() == []
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.9)
    paths = [folder.add(write, {}) for _ in range(3)]
    monkeypatch.setattr("time.time", lambda: 1_600_000_000.0)  # The clock was set back.
    paths.append(folder.add(write, {}))
    assert [os.path.basename(path) for path in paths] == [str(1_700_000_000 + i) for i in range(4)]
    assert [str(path) for path in folder.exports()] == paths
    assert (folder.exports()[0] / "program").read_text() == "code"
    assert sorted(os.listdir(folder.path)) == [os.path.basename(path) for path in paths]


def test_assets_are_copied_before_the_export_appears(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("a b")
    folder = ExportFolder(tmp_path / "exports")
    path = Path(folder.add(write, {"vocabulary/words.txt": words}))
    assert (path / "assets.extra" / "vocabulary" / "words.txt").read_text() == "a b"
    with pytest.raises(ArgumentError, match=r"`assets_extra` names '.*none.txt' for 'x', which is not a file"):
        folder.add(write, {"x": tmp_path / "none.txt"})
    assert len(folder.exports()) == 1


def test_an_export_that_fails_leaves_nothing(tmp_path):
    def fails(base: str) -> str:
        write(base)
        raise RuntimeError("no")

    folder = ExportFolder(tmp_path)
    with pytest.raises(RuntimeError, match="no"):
        folder.add(fails, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("keep", "left"), [(None, 4), (1, 1), (3, 3), (9, 4)])
def test_the_newest_are_kept(tmp_path, keep, left):
    folder = ExportFolder(tmp_path)
    paths = [folder.add(write, {}) for _ in range(4)]
    (tmp_path / "notes").mkdir()
    (tmp_path / "42").mkdir()  # no export: too short for a time
    folder.keep_newest(keep)
    assert [str(path) for path in folder.exports()] == paths[-left:]
    assert sorted(os.listdir(tmp_path)) == sorted([*map(os.path.basename, paths[-left:]), "42", "notes"])


def test_the_best_result_is_kept_beside_them(tmp_path):
    folder = ExportFolder(tmp_path / "best")
    assert folder.best() is None
    folder.add(write, {})
    folder.note_best({"loss": 0.5, "global_step": 3})
    folder.note_best({"loss": 0.25, "global_step": 4})
    assert ExportFolder(tmp_path / "best").best() == {"loss": 0.25, "global_step": 4}
