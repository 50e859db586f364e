"""A save of which each worker has the contents: one writes, and the next one does if it is lost."""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import Contents, elastic_save, read_metadata
from replicax.checkpoint.elastic_save import ElasticSave
from replicax.checkpoint.places import clean
from replicax.checkpoint.writing import save_files
from replicax.contracts.group import Group, World
from replicax.errors import CheckpointError

NOTHING = lambda: None  # noqa: E731
VALUE = np.arange(6, dtype=np.float32)


class Worlds(Group):
    """The worlds of one worker, which are changed by hand. The others tell nothing."""

    world = World(0, 0, (), ())

    def __init__(self, own: int, *members: int):
        super().__init__()
        self.own = own
        self.change(*members)

    def change(self, *members: int, newcomers: tuple[int, ...] = ()) -> None:
        names = tuple(f"worker:{index}" for index in members)
        self.world = World(1, members.index(self.own), members, names, newcomers)
        for change in list(self.changes):
            change()


class NoFailures:
    """An exchange in which no worker has told of a failure."""

    def __init__(self, *args: object):
        self.told: list[bytes] = []

    def decided(self, token: str) -> bytes | None:
        return None

    def decide(self, token: str, value: bytes) -> None:
        self.told.append(value)


@pytest.fixture(autouse=True)
def quiet_others(monkeypatch):
    monkeypatch.setattr(elastic_save, "Exchange", NoFailures)


def begun(
    worlds: Worlds, path: Path, token: str = "t", timeout_s: float = 0.5, committed=NOTHING, failed=NOTHING
) -> ElasticSave:
    contents = Contents({"w": VALUE}, {"epoch": {"value": 2}}, 7)
    return ElasticSave(worlds, path, contents, token, list(worlds.members), timeout_s, committed, failed)


def test_the_first_worker_writes_and_says_so_when_it_is_complete(tmp_path):
    complete = []
    path = tmp_path / "7"
    with rx.ledger.recording(tmp_path):
        begun(Worlds(0, 0, 1), path, committed=lambda: complete.append(path.exists())).wait()
    assert '"saved": ' in (tmp_path / "ledger" / "worker-0.jsonl").read_text()
    shutil.rmtree(tmp_path / "ledger")
    assert complete == [True]
    assert read_metadata(path).step == 7
    target = rx.Checkpoint(w=np.zeros(6, np.float32), epoch=0)
    target.restore(path)
    np.testing.assert_array_equal(target.objects["w"], VALUE)
    assert target.objects["epoch"] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["7"]


def test_another_worker_waits_and_says_for_whom(tmp_path):
    failures = []
    save = begun(Worlds(1, 0, 1), tmp_path / "7", failed=lambda: failures.append(7))
    save.raise_failure()  # All raise it together, when they wait.
    with pytest.raises(CheckpointError, match=r"after 0\.5 s nothing was heard of worker:0"):
        save.wait()
    assert not (tmp_path / "7").exists()
    assert failures == [7]  # Its manager may save the step again.


def test_the_next_worker_writes_when_the_first_is_lost(tmp_path):
    worlds = Worlds(1, 0, 1, 2)
    save = begun(worlds, tmp_path / "7")
    worlds.change(1, 2)
    save.wait()
    assert read_metadata(tmp_path / "7").step == 7
    assert worlds.changes == []


def test_a_newcomer_with_the_index_of_the_writer_does_not_count_as_it(tmp_path):
    worlds = Worlds(1, 0, 1)
    save = begun(worlds, tmp_path / "7")
    worlds.change(0, 1, newcomers=(0,))
    save.wait()
    assert (tmp_path / "7").exists()


def test_what_the_last_writer_completed_is_not_written_again(tmp_path):
    path = tmp_path / "7"
    begun(Worlds(0, 0, 1), path).wait()
    written = path.stat().st_ino
    ends = []
    worlds = Worlds(1, 0, 1)
    save = begun(worlds, path, committed=lambda: ends.append("deleted old ones"))
    worlds.change(1)
    save.wait()
    assert path.stat().st_ino == written
    assert ends == ["deleted old ones"]  # The lost writer may not have come to that.


def test_an_older_checkpoint_of_the_name_is_none(tmp_path):
    path = tmp_path / "7"
    begun(Worlds(0, 0), path, token="older").wait()
    save = begun(Worlds(1, 0, 1), path)
    with pytest.raises(CheckpointError, match="nothing was heard"):
        save.wait()


def test_a_writer_that_fails_says_why(tmp_path):
    (tmp_path / "file").write_text("no folder")
    save = begun(Worlds(0, 0, 1), tmp_path / "file" / "7")
    with pytest.raises(CheckpointError, match=r"could not be written.*file"):
        save.wait()


def test_what_another_job_has_deleted_is_not_committed(tmp_path, monkeypatch):
    def saved_and_cleaned(*args, **options):
        files = save_files(*args, **options)
        assert list(clean(tmp_path)) == [tmp_path / "7"]
        return files

    monkeypatch.setattr(elastic_save, "save_files", saved_and_cleaned)
    with pytest.raises(CheckpointError, match=r"not committed: .*w/0.* has been deleted since it was written"):
        begun(Worlds(0, 0, 1), tmp_path / "7").wait()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_counts_when_old_ones_cannot_be_deleted(tmp_path, caplog):
    def fails() -> None:
        raise OSError("disk is read-only now")

    with caplog.at_level(logging.ERROR):
        begun(Worlds(0, 0), tmp_path / "7", committed=fails).wait()
    assert (tmp_path / "7").exists()
    assert "old checkpoints could not be deleted" in caplog.text
    assert "read-only" in caplog.text


def test_a_wait_that_fails_forgets_the_save(tmp_path):
    worlds = Worlds(1, 0, 1)
    with contextlib.suppress(CheckpointError):
        begun(worlds, tmp_path / "7").wait()
    worlds.change(1)
    assert not (tmp_path / "7").exists()
