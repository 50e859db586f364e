"""The notes of a training on disk: what has been evaluated, and where it has ended."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint.checkpoint_follower import Found
from replicax.estimator.journal import Evaluated, Journal, checkpoints, forget_end, note_end, noted_end

FIRST = Found(Path("/run/model.ckpt-5"), 5, (17,))


def test_another_journal_of_the_folder_knows_what_was_evaluated(tmp_path):
    journal = Journal(tmp_path / "eval")
    assert journal.entries == []
    entry = Evaluated(str(FIRST.path), FIRST.version, {"loss": np.float32(0.5), "global_step": 5}, ["a", None])
    journal.add(entry)
    journal.add(entry._replace(checkpoint="/run/model.ckpt-6", metrics={"loss": float("nan"), "at": [1.0, 2.0]}))
    again = Journal(tmp_path / "eval")
    found = again.find(FIRST)
    assert found == Evaluated(str(FIRST.path), (17,), {"loss": 0.5, "global_step": 5}, ("a", None))
    assert np.isnan(again.entries[1].metrics["loss"])
    assert again.entries[1].metrics["at"] == [1.0, 2.0]
    assert again.find(Found(Path("/run/model.ckpt-7"), 7, (17,))) is None
    assert again.find(Found(FIRST.path, 5, (18,))) is None  # another training's, of the same name
    assert again.find(Found(Path("/elsewhere/model.ckpt-5"), 5, (17,))) is not None  # the folder was moved
    assert os.listdir(tmp_path / "eval") == ["followed.jsonl"]


def test_a_note_that_cannot_be_written_leaves_the_ones_before(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    entry = Evaluated("/run/model.ckpt-5", (17,), {"loss": 0.5}, [])
    journal.add(entry)

    def fails(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        Journal(tmp_path).add(entry)
    monkeypatch.undo()
    assert len(Journal(tmp_path).entries) == 1
    assert os.listdir(tmp_path) == ["followed.jsonl"]


def test_checkpoints_are_listed_by_step_with_when_they_were_written(tmp_path):
    assert checkpoints(tmp_path / "none") == []
    checkpoint = rx.Checkpoint(v=rx.Variable(1.0))
    manager = rx.CheckpointManager(checkpoint, tmp_path, checkpoint_name="model.ckpt", max_to_keep=None)
    with manager:
        for step in (2, 10):
            manager.save(step)
    (tmp_path / "eval").mkdir()
    found = checkpoints(tmp_path)
    assert [(each.step, each.name) for each in found] == [(2, "model.ckpt-2"), (10, "model.ckpt-10")]
    assert all(abs(each.version[0] / 1e9 - time.time()) < 60 for each in found)


def test_the_end_of_a_training_is_noted_and_taken_back(tmp_path):
    directory = tmp_path / "run"
    assert noted_end(directory) is None
    forget_end(directory)
    note_end(directory, 7)
    assert noted_end(directory) == 7
    assert noted_end(directory, since=time.time() - 60) == 7
    assert noted_end(directory, since=time.time() + 60) is None  # of an earlier training
    forget_end(directory)
    assert noted_end(directory) is None
