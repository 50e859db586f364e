from __future__ import annotations

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest

import replicax as rx
import replicax.compat.keras_files as keras_files
from tests.compat.guards import needs


def saving_lib():
    from keras.src.saving import saving_lib

    return saving_lib


@pytest.mark.parametrize(
    "name",
    [
        "_load_state",
        "get_attr_skipset",
        "is_memory_sufficient",
        "_load_model_from_fileobj",
        "load_weights_only",
        "safe_get_h5_dataset",
        "H5IOStore",
        "ShardedH5IOStore",
    ],
)
def test_keras_still_has(name):
    needs("keras", f"saving_lib.{name}", lambda: getattr(saving_lib(), name))


def test_the_arguments_of_what_is_wrapped():
    expected = (
        "saveable weights_store assets_store inner_path skip_mismatch visited_saveables failed_saveables error_msgs"
    )
    found = needs("keras", "saving_lib._load_state", lambda: inspect.signature(saving_lib()._load_state))
    assert list(found.parameters) == expected.split()


@pytest.mark.parametrize("name", ["a.weights.h5", "a.weights.json"])
def test_what_is_asked_of_a_store(tmp_path: Path, name: str):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.save_weights(tmp_path / name, **({} if name.endswith("h5") else {"max_shard_size": 1}))
    kind = saving_lib().H5IOStore if name.endswith("h5") else saving_lib().ShardedH5IOStore
    store = kind(tmp_path / name, mode="r")
    assert keras_files.is_h5_store(store)
    assert keras_files.archive_of(store) is None
    assert keras_files.name_of_store(store) == str(tmp_path / name)
    assert keras_files.shard_files(store) == ([] if name.endswith("h5") else [str(tmp_path / "a_00000.weights.h5")])
    dataset = keras_files.dataset_of(store.get("layers/dense"), "0")
    np.testing.assert_array_equal(dataset[()], np.asarray(model.weights[0]))
    store.close()


def test_a_model_is_read_out_of_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In Keras's way all of the file would be read at once, or copied."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.save(tmp_path / "a.keras")
    opened: list[object] = []
    kind = saving_lib().H5IOStore
    original = kind.__init__

    def noting(self, path_or_io, archive=None, mode="r"):
        original(self, path_or_io, archive, mode)
        opened.append(type(self.io_file).__name__)

    monkeypatch.setattr(kind, "__init__", noting)
    with rx.MirroredStrategy(devices=2).scope():
        keras.models.load_model(tmp_path / "a.keras")
    assert opened == ["_Window"]
    keras.models.load_model(tmp_path / "a.keras")
    assert opened == ["_Window", "NoneType"]  # Without a strategy it is Keras's way.
