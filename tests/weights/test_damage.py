"""Damaged files: a clear error and an unchanged model, whichever byte or field is wrong."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings

import replicax as rx
from replicax.errors import WeightsError
from replicax.weights.safetensors_format import read_header


def dense() -> keras.Model:
    layers = [keras.layers.Input((32,)), keras.layers.Dense(64, name="up"), keras.layers.Dense(16, name="down")]
    return keras.Sequential(layers)


def values_of(model: keras.Model) -> list[np.ndarray]:
    return [np.asarray(variable) for variable in model.weights]


@pytest.fixture(scope="module")
def model() -> keras.Model:
    with rx.FullyShardedStrategy(8, min_size=8).scope():
        return dense()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    source = dense()
    source.save_weights(folder / "a.weights.h5")
    source.save_weights(folder / "b.weights.json", max_shard_size=1e-6 * 8)
    source.save(folder / "c.keras")
    rx.weights.save_safetensors(source, folder / "d.safetensors")
    return folder


def unchanged(model: keras.Model, load: Callable[[], None], error: type[Exception] = WeightsError) -> str:
    """Checks that `load` fails and changes nothing; returns what it says."""
    before = values_of(model)
    with pytest.raises(error) as caught:
        load()
    for expected, value in zip(before, values_of(model), strict=True):
        np.testing.assert_array_equal(expected, value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.weights.h5", "c.keras", "b_00000.weights.h5", "d.safetensors"])
@pytest.mark.parametrize("kept", [0, 7, 100, 0.5, 0.9, -1])
def test_truncated_files(model: keras.Model, files: Path, tmp_path: Path, name: str, kept: float) -> None:
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    data = (files / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(kept * len(data)) if 0 < kept < 1 else int(kept)])
    read = "b.weights.json" if name.startswith("b_") else name
    if name.endswith(".safetensors"):
        said = unchanged(model, lambda: rx.weights.load_safetensors(model, tmp_path / read))
    else:
        said = unchanged(model, lambda: model.load_weights(tmp_path / read))
    assert str(tmp_path) in said


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_byte_of_a_safetensors_header_is_believed(model: keras.Model, files: Path, data: st.DataObject) -> None:
    """Whatever a header says: an error of ours, or a header that describes the whole file."""
    whole = bytearray((files / "d.safetensors").read_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    path = files / "damaged.safetensors"
    path.write_bytes(whole)
    with contextlib.suppress(WeightsError):
        tensors = read_header(path).values()
        assert sum(tensor.nbytes for tensor in tensors) == len(whole) - min(tensor.offset for tensor in tensors)


FIELDS = [
    ("dtype", "F33", "dtype 'F33'"),
    ("dtype", 7, "dtype 7"),
    ("dtype", "F64", "takes"),
    ("shape", [32, 65], "takes"),
    ("shape", [-32, -64], "has shape"),
    ("shape", 2048, "has shape"),
    ("shape", [True, 2048], "has shape"),
    ("data_offsets", [0, 2**62], "takes"),
    ("data_offsets", [8, 0], "takes"),
    ("data_offsets", [0], "has shape"),
    ("data_offsets", [0.0, 8192.0], "has shape"),
]


@pytest.mark.parametrize(("field", "value", "said"), FIELDS)
def test_every_field_of_a_safetensors_header(
    model: keras.Model, files: Path, tmp_path: Path, field: str, value: object, said: str
) -> None:
    data = (files / "d.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["up/kernel"][field] = value
    text = json.dumps(header).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    assert said in unchanged(model, lambda: rx.weights.load_safetensors(model, path))


# Where three tensors of eight bytes lie, and how many bytes there are.
PLACES = {
    "a gap": ((0, 16, 24), 32, "'b' begins at byte {16}, and what is before it ends at {8}"),
    "a gap as long as what lies twice": ((0, 16, 16), 24, "'b' begins at byte {16}, and what is before it ends at {8}"),
    "a tensor in another one": ((0, 4, 12), 20, "'b' begins at byte {4}, and what is before it ends at {8}"),
    "bytes before the first": ((8, 16, 24), 32, "'a' begins at byte {8}, and what is before it ends at {0}"),
    "bytes behind the last": ((0, 8, 16), 32, "its tensors end at byte {24}, and it has {32} bytes"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_tensors_lie_one_behind_the_other(tmp_path: Path, kind: str) -> None:
    starts, size, said = PLACES[kind]
    header = {
        name: {"dtype": "F32", "shape": [2], "data_offsets": [start, start + 8]}
        for name, start in zip("abc", starts, strict=True)
    }
    text = json.dumps(header).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    with pytest.raises(safetensors.SafetensorError):
        safetensors.numpy.load_file(path)
    begin = 8 + len(text)
    said = re.sub(r"\{(\d+)\}", lambda match: str(begin + int(match[1])), said)
    variables = {name: rx.Variable([1.0, 1.0]) for name in header}
    with pytest.raises(WeightsError, match=said):
        rx.weights.load_safetensors(variables, path)
    assert [variable.numpy().tolist() for variable in variables.values()] == [[1.0, 1.0]] * 3


@settings(max_examples=40, deadline=None, derandomize=True)  # A crash of HDF5 itself would be no news.
@given(st.data())
def test_random_bytes_of_hdf5_change_numbers_or_nothing(model: keras.Model, files: Path, data: st.DataObject) -> None:
    """HDF5 has no checksums: a byte of a number may be another one, but never half a model beside an error."""
    whole = bytearray((files / "a.weights.h5").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, 6000))] = data.draw(st.integers(0, 255))
    path = files / "damaged.weights.h5"
    path.write_bytes(whole)
    before = values_of(model)
    try:
        model.load_weights(path)
    except WeightsError as error:
        if "has got a part of it" not in str(error):
            for expected, value in zip(before, values_of(model), strict=True):
                np.testing.assert_array_equal(expected, value)


def test_a_tensor_that_is_missing_or_too_much_or_has_another_shape(
    model: keras.Model, files: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.weights.h5"
    shutil.copy(files / "a.weights.h5", path)
    with h5py.File(path, "a") as file:
        kernel = file["layers/dense/vars/0"][()]
        del file["layers/dense/vars/0"]
    said = unchanged(model, lambda: model.load_weights(path))
    assert "/up/kernel' (32, 64) finds no weight in the file" in said
    with h5py.File(path, "a") as file:
        file["layers/dense/vars/0"] = kernel.T
        file["layers/other/vars/0"] = np.ones(3)
    said = unchanged(model, lambda: model.load_weights(path))
    assert "/up/kernel' has shape (32, 64), and its weight 'layers/dense/vars/0 (up)' has shape (64, 32)" in said
    too_much = "Weight 'layers/other/vars/0' (3,) of the file finds no variable. Nearest: "
    assert too_much in said
    with h5py.File(path, "a") as file:
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = kernel
    said = unchanged(model, lambda: model.load_weights(path))
    assert too_much in said
    assert said.count("\n") == 1  # Nothing else is wrong.


NO_NUMBERS = {
    "strings of one length": (np.full((64, 16), b"1"), r"\|S1"),
    "strings": (np.full((64, 16), "1", dtype=object), "object"),
    "raw bytes": (np.zeros((64, 16), "V2"), r"\|V2"),
    "records": (np.zeros((64, 16), [("a", "<f4"), ("b", "<f4")]), r"\('a', '<f4'\)"),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
@pytest.mark.parametrize("compression", [None, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_tensor_that_has_no_numbers_is_refused_before_anything_changes(
    model: keras.Model, files: Path, tmp_path: Path, kind: str, compression: int | None
) -> None:
    values, dtype = NO_NUMBERS[kind]
    path = tmp_path / "a.weights.h5"
    shutil.copy(files / "a.weights.h5", path)
    with h5py.File(path, "a") as file:
        del file["layers/dense_1/vars/0"]
        file["layers/dense_1/vars/0"] = values
    if compression is not None:
        path = tmp_path / "c.keras"
        with zipfile.ZipFile(files / "c.keras") as whole, zipfile.ZipFile(path, "w", compression) as archive:
            for name in whole.namelist():
                data = (tmp_path / "a.weights.h5").read_bytes() if name == "model.weights.h5" else whole.read(name)
                archive.writestr(name, data)
    said = unchanged(model, lambda: model.load_weights(path))
    assert re.search(rf"down/kernel' takes numbers, and its weight 'layers/dense_1/vars/0.*has dtype .*{dtype}", said)
    before = values_of(model)
    with pytest.warns(UserWarning, match="1 objects could not be loaded"):
        model.load_weights(path, skip_mismatch=True)
    np.testing.assert_array_equal(before[2], values_of(model)[2])


def test_a_tensor_of_another_shape_in_a_compressed_archive(model: keras.Model, files: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.keras"
    with zipfile.ZipFile(files / "c.keras") as whole:
        (tmp_path / "a.weights.h5").write_bytes(whole.read("model.weights.h5"))
        with h5py.File(tmp_path / "a.weights.h5", "a") as file:
            del file["layers/dense_1/vars/0"]
            file["layers/dense_1/vars/0"] = np.ones((16, 64), np.float32)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("model.weights.h5", (tmp_path / "a.weights.h5").read_bytes())
    said = unchanged(model, lambda: model.load_weights(path))
    assert "down/kernel' has shape (64, 16), and its weight" in said


def test_skip_mismatch_loads_what_fits_as_keras_does(files: Path) -> None:
    def other() -> keras.Model:
        layers = [keras.layers.Input((32,)), keras.layers.Dense(64, name="up"), keras.layers.Dense(8, name="down")]
        return keras.Sequential(layers)

    with rx.FullyShardedStrategy(8, min_size=8).scope():
        sharded = other()
    plain = other()
    for each in (plain, sharded):
        each.weights[2].assign(np.ones((64, 8)))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            each.load_weights(files / "a.weights.h5", skip_mismatch=True)
        assert ["1 objects could not be loaded" in str(one.message) for one in warned] == [True]
    for expected, value in zip(values_of(plain), values_of(sharded), strict=True):
        np.testing.assert_array_equal(expected, value)


def test_a_file_that_is_not_there_is_pythons_own_error(model: keras.Model, tmp_path: Path) -> None:
    unchanged(model, lambda: model.load_weights(tmp_path / "a.weights.h5"), FileNotFoundError)
