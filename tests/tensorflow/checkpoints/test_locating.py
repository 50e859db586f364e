from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints import is_tensorflow, open_checkpoint
from replicax.tensorflow.checkpoints.locating import located
from tests.migrate import bundles, recorded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (1, 2):
        bundles.write_bundle(tmp_path / f"ckpt-{step}", {"x": np.int32(step)})
    return tmp_path


def state(folder: Path, path: str) -> None:
    (folder / "checkpoint").write_text(
        f'model_checkpoint_path: "{path}"\nall_model_checkpoint_paths: "ckpt-1"\nall_model_checkpoint_paths: "{path}"\n'
    )


@pytest.mark.parametrize("name", ["ckpt-2", "ckpt-2.index", "ckpt-2.data-00000-of-00001", "ckpt-2.meta"])
def test_a_prefix_or_any_file_of_it(folder, name):
    assert located(folder / name) == ("bundle", folder / "ckpt-2")


@pytest.mark.parametrize("path", ["ckpt-1", "{}/ckpt-1", "/gone/elsewhere/ckpt-1"])
def test_a_folder_whose_state_names_the_latest(folder, path):
    state(folder, path.format(folder))
    for given in (folder, folder / "checkpoint"):
        assert open_checkpoint(given).read("x") == 1


def test_a_name_with_quotes_and_patterns(tmp_path):
    bundles.write_bundle(tmp_path / 'a"[b]\\*', {"x": np.int32(5)})
    state(tmp_path, 'a\\"[b]\\\\*')
    assert open_checkpoint(tmp_path).read("x") == 5


def test_a_folder_without_a_state(folder):
    with pytest.raises(CheckpointError, match="not one checkpoint, but ckpt-1, ckpt-2: name the one to read"):
        open_checkpoint(folder)
    (folder / "ckpt-1.index").unlink()
    assert open_checkpoint(folder).read("x") == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "names no checkpoint"),
        ("all_model_checkpoint_paths: 'x'", "it has no line model_checkpoint_path"),
        ('model_checkpoint_path: "ckpt-9"', "names ckpt-9, of which there is no file"),
        ('model_checkpoint_path: "a\0b"', "which is no path"),
        ('model_checkpoint_path: "\xff"', "names ÿ, of which there is no file"),
    ],
)
def test_a_damaged_state(folder, text, problem):
    (folder / "checkpoint").write_text(text)
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(folder)


def test_saved_models(tmp_path):
    fixture = recorded.checkpoint_of(recorded.FIXTURES / "saved_model_module")
    expected = ("bundle", fixture / "variables" / "variables")
    assert located(fixture) == expected
    shutil.copytree(fixture, tmp_path / "s")
    (tmp_path / "s" / "saved_model.pb").write_bytes(b"")
    assert located(tmp_path / "s" / "saved_model.pb") == ("bundle", tmp_path / "s" / "variables" / "variables")
    shutil.rmtree(tmp_path / "s" / "variables")
    with pytest.raises(CheckpointError, match="the SavedModel has no variables"):
        open_checkpoint(tmp_path / "s")


def test_the_first_format_of_savers():
    whole, parts = (recorded.FIXTURES / name for name in ("saver_first_version", "saver_first_version_sharded"))
    assert located(whole / "model.ckpt-12") == ("saver_v1", whole / "model.ckpt-12")
    for name in ("model.ckpt-12", "model.ckpt-12-00001-of-00002"):
        kind, prefix = located(parts / name)
        assert kind == "saver_v1"
        assert open_checkpoint(prefix).tensors.keys() <= open_checkpoint(whole).tensors.keys()


def test_other_files(tmp_path):
    (tmp_path / "m.keras").write_bytes(b"PK\3\4")
    with pytest.raises(CheckpointError, match=r"m\.keras cannot be read: it is an archive of Keras 3: load it with"):
        open_checkpoint(tmp_path / "m.keras")
    (tmp_path / "x").write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="neither a checkpoint of TensorFlow's nor an HDF5 file"):
        open_checkpoint(tmp_path / "x")
    with pytest.raises(CheckpointError, match=r"there is no such file, nor one with this name and \.index"):
        open_checkpoint(tmp_path / "absent")


def test_whether_it_looks_like_one_of_tensorflows(folder):
    assert is_tensorflow(folder / "ckpt-1")
    assert not is_tensorflow(folder)
    state(folder, "gone")
    assert is_tensorflow(folder)  # so that the answer is about the state, and not about a file that replicax writes
    assert not is_tensorflow(folder / "absent")
