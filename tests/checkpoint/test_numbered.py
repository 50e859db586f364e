"""Numbered checkpoints in a folder, and the newest of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import replicax as rx
from replicax.checkpoint import numbered
from replicax.errors import ArgumentError, CheckpointError
from tests.migrate.recorded import FIXTURES


def made(folder: Path, *names: str) -> None:
    for age, name in enumerate(names):
        (folder / name).mkdir()
        (folder / name / "metadata.json").write_text("{}")
        os.utime(folder / name / "metadata.json", (1000 + age, 1000 + age))


def test_the_highest_number_is_the_newest(tmp_path: Path):
    made(tmp_path, "ckpt-9", "ckpt-10", "ckpt-2")
    assert rx.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-10")
    assert [each.number for each in numbered(tmp_path)] == [2, 9, 10]


def test_of_several_names_the_last_one_written_counts(tmp_path: Path):
    made(tmp_path, "00000500", "best-7", "a-b-3", "a-b-1")
    assert rx.latest_checkpoint(str(tmp_path)) == str(tmp_path / "a-b-3")
    made(tmp_path, "00000501")
    os.utime(tmp_path / "00000501" / "metadata.json", (2000, 2000))
    assert rx.latest_checkpoint(tmp_path) == str(tmp_path / "00000501")


def test_what_is_no_checkpoint_is_passed_over(tmp_path: Path):
    made(tmp_path, "17", "x-007", "ckpt", "-", "x-", "0000000\N{ARABIC-INDIC DIGIT ONE}")
    (tmp_path / "x-1").mkdir()
    assert rx.latest_checkpoint(tmp_path) is None
    assert rx.latest_checkpoint(tmp_path / "none") is None


def test_a_file_that_says_which_is_the_latest_is_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match="latest_filename"):
        rx.latest_checkpoint(tmp_path, latest_filename="state")
    with pytest.raises(ArgumentError, match=r"a string or a pathlib"):
        rx.latest_checkpoint(3)


def test_a_folder_of_tensorflows_checkpoints(tmp_path: Path):
    shutil.copytree(FIXTURES / "manager" / "training", tmp_path / "training")
    assert rx.latest_checkpoint(tmp_path / "training") == str(tmp_path / "training" / "ckpt-3")
    made(tmp_path / "training", "ckpt-1")  # the training went on here
    assert rx.latest_checkpoint(tmp_path / "training") == str(tmp_path / "training" / "ckpt-1")


@pytest.mark.parametrize("text", ["", 'model_checkpoint_path: "gone-5"', "\xff\0"])
def test_a_damaged_file_of_tensorflows_is_no_fresh_start(tmp_path: Path, text):
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(CheckpointError, match=r"has no checkpoint that can be restored: .*checkpoint names"):
        rx.latest_checkpoint(tmp_path)
