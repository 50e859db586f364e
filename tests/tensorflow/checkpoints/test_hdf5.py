from __future__ import annotations

from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints import open_checkpoint


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of two layers, as Keras 2 saves weights; the second stands before the first by name."""
    path = tmp_path / "w.h5"
    with h5py.File(path, "w") as weights:
        weights.attrs["layer_names"] = ["z_first", "a_second", "without"]
        for layer, names in {"z_first": ["z/kernel:0", "z/bias:0"], "a_second": ["a/kernel:0"], "without": []}.items():
            group = weights.create_group(layer)
            group.attrs["weight_names"] = names
            for i, name in enumerate(names):
                group[name] = np.full((2, 3), i + len(layer), np.float32)
    return path


def test_the_order_of_layers_and_weights(file):
    checkpoint = open_checkpoint(file)
    assert checkpoint.layers == {
        "z_first": ("z_first/z/kernel:0", "z_first/z/bias:0"),
        "a_second": ("a_second/a/kernel:0",),
        "without": (),
    }
    assert list(checkpoint.layers) == ["z_first", "a_second", "without"]
    assert checkpoint.read("z_first/z/bias:0").tolist() == [[8] * 3] * 2
    assert checkpoint.read("z_first/z/bias:0", (slice(1, 2), slice(0, 2))).tolist() == [[8, 8]]
    assert checkpoint.verify() == {}


def test_names_that_keras_splits(tmp_path):
    with h5py.File(tmp_path / "w.h5", "w") as weights:
        weights.attrs["layer_names0"], weights.attrs["layer_names1"] = [b"a", b"b"], [b"c"]
        for name in "abc":
            weights.create_group(name).attrs["weight_names"] = [b"w:0"]
            weights[name]["w:0"] = np.float64(1)
    assert open_checkpoint(tmp_path / "w.h5").layers == {name: (f"{name}/w:0",) for name in "abc"}


def test_a_model_with_its_optimizer(tmp_path):
    with h5py.File(tmp_path / "m.h5", "w") as model:
        model.create_group("model_weights/dense").attrs["weight_names"] = ["k:0"]
        model["model_weights"].attrs["layer_names"] = ["dense"]
        model["model_weights/dense/k:0"] = np.ones((2, 2))
        model.create_group("optimizer_weights").attrs["weight_names"] = ["Adam/iter:0"]
        model["optimizer_weights/Adam/iter:0"] = np.int64(3)
        model["text"] = "what is no number is listed"
    checkpoint = open_checkpoint(tmp_path / "m.h5")
    assert checkpoint.layers == {"dense": ("model_weights/dense/k:0",)}
    assert checkpoint.optimizer == ("optimizer_weights/Adam/iter:0",)
    assert checkpoint.read("optimizer_weights/Adam/iter:0") == 3
    assert checkpoint.tensors["text"].dtype is None


@pytest.mark.parametrize("dtype", [">f4", "<f8", "float16", "int8", ">i8", "uint16", "bool", "complex64"])
def test_dtypes(tmp_path, dtype):
    values = np.array([[0, 1], [1, 0]], dtype)
    with h5py.File(tmp_path / "w.h5", "w") as weights:
        weights["x"] = values
        weights.create_dataset("compressed", data=values, compression="gzip", chunks=(1, 2))
    checkpoint = open_checkpoint(tmp_path / "w.h5")
    for name in ("x", "compressed"):
        found = checkpoint.read(name)
        assert found.dtype == values.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, values)


def test_bfloat16_which_hdf5_does_not_know(tmp_path):
    """Keras writes two opaque bytes; new files say what they are, those of Keras 2 do not."""
    values = np.array([[0.5, -3], [1e30, 0]], ml_dtypes.bfloat16)
    with h5py.File(tmp_path / "w.h5", "w") as weights:
        weights["keras2"], weights["scalar"], weights["other"] = values, values[0, 1], np.zeros(3, "V1")
        weights.create_dataset("keras3", data=values).attrs["dtype"] = "bfloat16"
    checkpoint = open_checkpoint(tmp_path / "w.h5")
    assert checkpoint.read("keras2").dtype == ml_dtypes.bfloat16
    assert checkpoint.read("keras2").tolist() == checkpoint.read("keras3").tolist() == values.tolist()
    assert checkpoint.read("scalar") == -3
    assert checkpoint.tensors["other"].dtype is None  # one of several of eight bits


def _virtual(weights: h5py.File) -> None:
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "x", (2,))
    weights.create_virtual_dataset("v", layout)


def _twice(weights: h5py.File) -> None:
    weights["a"] = weights.create_group("b")


def _loop(weights: h5py.File) -> None:
    weights.create_group("b")["root"] = weights["/"]


def _absent(weights: h5py.File) -> None:
    weights.attrs["layer_names"] = ["gone"]


def _without_weights(weights: h5py.File) -> None:
    weights.attrs["layer_names"] = ["d"]
    weights.create_group("d").attrs["weight_names"] = ["k:0"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda weights: weights.create_dataset("x", (1 << 40,), "f4"), "has 0 bytes in a file of"),  # never written
        (
            lambda weights: weights.create_dataset("x", (1 << 40,), "f4", chunks=(8,)),
            "cannot have been compressed to 0",
        ),
        (lambda weights: weights.create_dataset("x", (2,), "f4", external="other"), "has 8 bytes in a file of"),
        (_virtual, "'v' of shape"),
        (lambda weights: weights.update({"s": h5py.SoftLink("/x")}), "'s' refers to another place"),
        (lambda weights: weights.update({"s": h5py.ExternalLink("/etc/passwd", "x")}), "'s' refers to another place"),
        (_twice, "has another name too"),
        (_loop, "'b/root' has another name too"),
        (_absent, "it is damaged, or no file of weights"),
        (_without_weights, "'d/k:0' is named, and not there"),
    ],
)
def test_what_is_no_file_of_weights(tmp_path, change, problem):
    with h5py.File(tmp_path / "w.h5", "w") as weights:
        change(weights)
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(tmp_path / "w.h5")


def test_a_heap_in_which_the_library_would_search_for_ever(file):
    """h5py keeps lists of strings in a collection; an object of no size and no index never ends a search in it."""
    data = bytearray(file.read_bytes())
    begin = data.index(b"GCOL")
    data[begin + 16 : begin + 32] = bytes(16)
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"the strings at byte {begin} are damaged"):
        open_checkpoint(file)


def test_a_file_that_was_cut_off(file):
    data = file.read_bytes()
    for size in range(8, len(data) - 8, 500):
        file.write_bytes(data[:size])
        with pytest.raises(CheckpointError, match=r"w\.h5 cannot be read"):
            open_checkpoint(file)
