"""`replicax ckpt`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import replicax as rx
from replicax.checkpoint import read_metadata
from replicax.checkpoint.metadata import FILE, complete
from replicax.cli.app import app


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ckpt", *map(str, arguments)])


@pytest.fixture
def written(tmp_path: Path) -> Path:
    a, b = rx.Variable(np.ones((2, 3), np.float32)), rx.Variable(3)
    with rx.CheckpointManager(tmp_path / "c", objects={"a": a, "b": b, "n": 5}) as manager:
        manager.save(1)
        a.assign(np.full((2, 3), 1.5, np.float32))
        manager.save(2)
    return manager.directory


def test_inspect(written: Path):
    shown = call("inspect", written)
    assert shown.exit_code == 0
    for text in ("a", "[2, 3]", "float32", "24 B", "step 2", "Also saved: n"):
        assert text in shown.stdout
    told = json.loads(call("inspect", written / "00000001", "--json").stdout)
    assert told["step"] == 1
    assert told["arrays"]["a"] == {"shape": [2, 3], "dtype": "float32", "bytes": 24}
    assert told["states"] == ["n"]


def test_verify(written: Path):
    shown = call("verify", written)
    assert shown.exit_code == 0
    assert "all as they were written" in shown.stdout
    (data,) = (written / "00000002").glob("*-a/0.0")
    data.write_bytes(b"x" * data.stat().st_size)
    shown = call("verify", written)
    assert shown.exit_code == 1
    assert f"{data} has other contents than were written (array a)" in shown.stdout.replace("\n", "")
    told = json.loads(call("verify", written, "--json").stdout)
    assert list(told["arrays"].values()) == ["a"]
    data.unlink()
    assert "is missing" in call("verify", written).stdout


def without_the_parts_of_a(path: Path) -> Path:
    """Leaves a checkpoint as if `a` had been written to another folder: all files that are listed are there."""
    metadata = read_metadata(path)
    for file in (FILE, f"{metadata.arrays['a'].folder}/0.0"):
        (path / file).unlink()
    complete(path, metadata.arrays, metadata.step, metadata.notes, metadata.processes)
    return path


def test_verify_notices_parts_that_were_never_written(written: Path):
    path = without_the_parts_of_a(written / "00000002")
    shown = call("verify", path)
    assert shown.exit_code == 1
    assert "-a/0.0 was never written (array a)" in shown.stdout.replace("\n", "")


def test_verify_counts_no_parts_of_empty_arrays_and_numbers(tmp_path: Path):
    arrays = {"empty": np.zeros((0, 3)), "number": np.float32(0), "zeros": np.zeros((4, 3, 2))}
    path = rx.Checkpoint(**arrays).write(tmp_path / "c")
    assert call("verify", path).exit_code == 0


def test_diff(written: Path, tmp_path: Path):
    first, second = written / "00000001", written / "00000002"
    assert call("diff", first, first).exit_code == 0
    shown = call("diff", first, second, "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.stdout) == {"equal": False, "differences": {"a": 0.5, "b": 0}}
    values = {"a": rx.Variable([1.0]), "c": rx.Variable(np.nan)}
    other = rx.Checkpoint(**values).write(tmp_path / "other")
    found = json.loads(call("diff", first, other, "--json").stdout)["differences"]
    assert found["a"] == "shape [2, 3] and [1]"
    assert found["b"].startswith("only in")
    assert found["c"].startswith("only in")
    assert call("diff", other, other).exit_code == 0
    assert "0.5" in call("diff", first, second).stdout


def test_what_is_no_checkpoint(tmp_path: Path):
    shown = call("inspect", tmp_path)
    assert shown.exit_code == 2
    assert "no complete checkpoint" in shown.stderr
