"""Every fixture, read as TensorFlow read it; and what `open_checkpoint` answers to what it cannot read."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints import open_checkpoint
from tests.migrate import bundles, recorded


@pytest.mark.parametrize("fixture", recorded.fixtures(), ids=lambda path: path.name)
def test_tensors_have_the_bits_that_tensorflow_read(fixture):
    assert list(recorded.different(fixture)) == []


def test_there_are_enough_fixtures_of_each_format():
    formats = [open_checkpoint(recorded.checkpoint_of(fixture)).format for fixture in recorded.fixtures()]
    assert formats.count("bundle") >= 40
    assert formats.count("hdf5") >= 10
    assert formats.count("saver_v1") >= 2


@pytest.fixture
def written(tmp_path: Path) -> Path:
    values = {"w": np.arange(24, dtype=np.float32).reshape(6, 4), "n": np.int64(3), "name": np.array([1, 2], np.int8)}
    bundles.write_bundle(tmp_path / "ckpt-7", values, shards=2, cuts={"w": (1, 2, 3)})
    return tmp_path / "ckpt-7"


def test_it_is_a_public_name(written):
    checkpoint = rx.checkpoint.tensorflow.open_checkpoint(written)
    assert (checkpoint.format, checkpoint.step, checkpoint.graph) == ("bundle", 7, None)
    info = checkpoint.tensors["w"]
    assert (info.shape, info.dtype, info.nbytes, info.stored, info.slices) == ((6, 4), np.float32, 96, 96, 3)


@pytest.mark.parametrize(
    "index", [(slice(2, 5),), (slice(None), slice(1, 3)), (slice(4, 4),), (slice(-2, None), slice(0, 1)), ()]
)
def test_a_part_of_a_partitioned_tensor(written, index):
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    np.testing.assert_array_equal(open_checkpoint(written).read("w", index), values[index])


@pytest.mark.parametrize("index", [(slice(0, 6, 2),), (slice(None),) * 3])
def test_an_index_that_does_not_fit(written, index):
    with pytest.raises(CheckpointError, match=r"is no index of 'w', which has shape \(6, 4\): give plain slices"):
        open_checkpoint(written).read("w", index)


def test_an_unknown_name(written):
    with pytest.raises(CheckpointError, match=r"There is no tensor 'names' in .*ckpt-7\. Did you mean 'name'"):
        open_checkpoint(written).read("names")


def test_a_damaged_part_is_noticed_though_another_one_is_asked_for(written):
    data = bytearray(Path(f"{written}.data-00000-of-00002").read_bytes())
    data[-1] ^= 1
    Path(f"{written}.data-00000-of-00002").write_bytes(data)
    checkpoint = open_checkpoint(written)
    damaged = checkpoint.verify()
    assert len(damaged) == 1
    (name,) = damaged
    shape = checkpoint.tensors[name].shape
    with pytest.raises(CheckpointError, match=rf"The tensor '{name}' in .*ckpt-7 cannot be read: bytes .* checksum"):
        checkpoint.read(name, (slice(0, 0),) if shape else None)


def test_reading_needs_the_tensor_and_little_more(tmp_path):
    values = {"a": np.ones((1024, 8192), np.float32), "b": np.zeros((1024, 8192), np.float32)}
    bundles.write_bundle(tmp_path / "ckpt", values, cuts={"b": (512, 512)})
    del values
    checkpoint = open_checkpoint(tmp_path / "ckpt")
    for name, index, most in (("a", None, 45), ("b", None, 55), ("a", (slice(0, 8),), 12)):
        tracemalloc.start()
        assert checkpoint.read(name, index).mean() == (name == "a")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < most << 20  # the tensor has 32 MiB


def test_the_step(tmp_path):
    bundles.write_bundle(tmp_path / "model-9", {"global_step": np.int64(1234)})
    assert open_checkpoint(tmp_path / "model-9").step == 1234
    bundles.write_bundle(tmp_path / "model", {"x": np.int64(1)})
    assert open_checkpoint(tmp_path / "model").step is None


def test_files_that_vanish_while_they_are_used(written):
    checkpoint = open_checkpoint(written)
    for path in written.parent.glob("*.data-*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"cannot be read: .*No such file"):
        checkpoint.read("w")


def test_the_newest_of_a_folder_and_its_objects():
    fixture = recorded.FIXTURES / "opt_tf_keras_legacy_adam"
    checkpoint = open_checkpoint(recorded.checkpoint_of(fixture))
    assert checkpoint.graph is not None
    (optimizer,) = (node for node in checkpoint.graph.nodes if node.slots)
    kept = {(checkpoint.graph.paths[slot.variable], slot.name) for slot in optimizer.slots}
    layers = [f"model/layer_with_weights-{i}/{name}" for i in (0, 1) for name in ("kernel", "bias")]
    assert kept == {(layer, name) for layer in layers for name in ("m", "v")}
    for slot in optimizer.slots:
        key = checkpoint.graph.variables[slot.node].key
        assert checkpoint.tensors[key].shape == checkpoint.tensors[checkpoint.graph.variables[slot.variable].key].shape


def test_a_saved_model_that_was_moved(tmp_path):
    shutil.copytree(recorded.FIXTURES / "saved_model_keras", tmp_path / "moved")
    (model,) = {path.parent.parent for path in (tmp_path / "moved").glob("**/variables.index")}
    assert open_checkpoint(model).tensors.keys() == open_checkpoint(model / "variables" / "variables").tensors.keys()
