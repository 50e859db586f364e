"""`replicax ckpt`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import replicax as rx
from replicax.checkpoint import read_metadata
from replicax.checkpoint.metadata import FILE, metadata_file
from replicax.cli.app import app
from replicax.tensorflow.checkpoints import open_checkpoint
from tests.migrate.recorded import FIXTURES


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
    files = {name: file for name, file in metadata.files.items() if not name.endswith("-a/0.0")}
    document = metadata_file(metadata.arrays, files, metadata.step, metadata.notes, metadata.processes)
    (path / FILE).write_bytes(document)
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


def test_the_difference_of_bytes_is_no_byte(tmp_path: Path):
    first, second = (
        rx.Checkpoint(bytes=np.array([3, value], np.uint8)).write(tmp_path / str(value)) for value in (7, 9)
    )
    assert json.loads(call("diff", first, second, "--json").stdout)["differences"] == {"bytes": 2.0}


@pytest.mark.parametrize(
    ("other", "difference"), [([np.nan, 2.0], 0.0), ([np.nan, 3.5], 1.5), ([1.0, 2.0], "not a number on one side")]
)
def test_nan_is_like_nan_and_like_no_number(tmp_path: Path, other: list[float], difference: float | str):
    values = {"first": [np.nan, 2.0], "second": other}
    paths = [rx.Checkpoint(a=np.array(value)).write(tmp_path / name) for name, value in values.items()]
    assert json.loads(call("diff", *paths, "--json").stdout)["differences"] == {"a": difference}


def test_what_is_no_checkpoint(tmp_path: Path):
    shown = call("inspect", tmp_path)
    assert shown.exit_code == 2
    assert "no complete checkpoint" in shown.stderr


ADAM = FIXTURES / "opt_tf_keras_legacy_adam" / "ckpt"


def test_inspect_a_checkpoint_of_tensorflow():
    told = json.loads(call("inspect", ADAM, "--values", "--json").stdout)
    assert (told["format"], told["step"], len(told["arrays"])) == ("bundle", None, 17)
    kernel = "model/layer_with_weights-0/kernel"
    variable = told["arrays"][f"{kernel}/.ATTRIBUTES/VARIABLE_VALUE"]
    assert (variable["shape"], variable["dtype"], variable["bytes"]) == ([4, 3], "float32", 48)
    assert variable["variable"].endswith("/kernel")
    slot = told["arrays"][f"{kernel}/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE"]
    assert slot["variable"] == f"m of {variable['variable']}"
    assert told["arrays"]["optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE"]["values"] == "5"
    shown = call("inspect", ADAM)
    for text in ("[4, 3]", "48 B", "17 arrays", "Variable"):
        assert text in shown.stdout
    assert "by TensorFlow or Keras 2 (bundle)" in shown.stdout.replace("\n", "")


def test_piped_each_tensor_is_one_line_in_natural_order():
    lines = call("inspect", FIXTURES / "keras3_beside" / "ckpt").stdout.splitlines()
    names = [line.split()[0] for line in lines[1:-1]]
    assert "VARIABLE_VALUE" not in "".join(lines)
    assert [name for name in names if name.startswith("opt/_v")] == [f"opt/_variables/{i}" for i in range(2, 10)]
    assert len([name for name in names if name.startswith("net/")]) == 4
    assert len(names) == 17
    assert "written by TensorFlow" in lines[-1]


def test_inspect_a_file_of_weights():
    (path,) = (FIXTURES / "tf_keras_legacy_h5_mlp").glob("*.h5")
    told = json.loads(call("inspect", path, "--json").stdout)
    assert told["format"] == "hdf5"
    assert {name for names in told["layers"].values() for name in names} == told["arrays"].keys()
    assert "without checksums to compare" in call("verify", path).stdout


def test_verify_a_checkpoint_of_tensorflow(tmp_path: Path):
    shutil.copytree(ADAM.parent, tmp_path / "c")
    copied = tmp_path / "c" / "ckpt"
    shown = call("verify", copied)
    assert (shown.exit_code, "17 tensors, all as they were written" in shown.stdout) == (0, True)
    data = tmp_path / "c" / "ckpt.data-00000-of-00001"
    data.write_bytes(b"\1" + data.read_bytes()[1:])
    shown = call("verify", copied)
    assert shown.exit_code == 1
    assert "have another checksum than when they were written" in shown.stdout.replace("\n", "")
    assert len(json.loads(call("verify", copied, "--json").stdout)["damaged"]) == 1
    data.unlink()
    shown = call("verify", copied)
    assert (shown.exit_code, "there is no ckpt.data-00000-of-00001" in shown.stderr) == (2, True)


def test_diff_of_checkpoints_of_tensorflow_and_of_both_kinds(tmp_path: Path):
    assert call("diff", ADAM, ADAM).exit_code == 0
    other = FIXTURES / "opt_tf_keras_legacy_adam_amsgrad" / "ckpt"
    found = json.loads(call("diff", ADAM, other, "--json").stdout)["differences"]
    assert found["optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE"] == 0
    assert any(str(text).startswith("only in") for name, text in found.items() if "/vhat/" in name)
    saver = FIXTURES / "saver_partitioned"
    prefix = next(saver.glob("*.index")).with_suffix("")
    own = rx.Checkpoint(**{"dense": {"bias": open_checkpoint(prefix).read("dense/bias") + 1}}).write(tmp_path / "own")
    found = json.loads(call("diff", prefix, own, "--json").stdout)["differences"]
    assert found["dense/bias"] == pytest.approx(1)
