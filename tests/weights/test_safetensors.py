"""Files of safetensors: what is written is read back, anywhere, and by the reference implementation."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import safetensors.numpy

import replicax as rx
from replicax.errors import ArgumentError, WeightsError
from tests.weights.test_keras_files import STRATEGIES, small_model, values_of

NAMES = {"up/kernel": "mlp.weight", "up/bias": "mlp.bias"}


def dense() -> keras.Model:
    return keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(32, name="up")])


@pytest.mark.daily(2)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("max_shard_size", [None, 1e-5])
def test_a_saved_model_is_loaded_under_another_layout(
    tmp_path: Path, strategy: str, max_shard_size: float | None
) -> None:
    with rx.FullyShardedStrategy(8, min_size=64).scope():
        model = small_model()
    path = tmp_path / ("model.safetensors" if max_shard_size is None else "parts")
    rx.weights.save_safetensors(model, path, max_shard_size=max_shard_size)
    with STRATEGIES[strategy]().scope():
        other = small_model()
    rx.weights.load_safetensors(other, path)
    for expected, value in zip(values_of(model), values_of(other), strict=True):
        np.testing.assert_array_equal(expected, value)
    assert not list(tmp_path.rglob(".saving*"))


def test_the_reference_implementation_reads_and_writes_the_same(tmp_path: Path) -> None:
    model = dense()
    rx.weights.save_safetensors(model, tmp_path / "a.safetensors", names=NAMES.get)
    read = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert sorted(read) == sorted(NAMES.values())
    np.testing.assert_array_equal(read["mlp.weight"], np.asarray(model.weights[0]))
    written = {"w": np.arange(2048, dtype="f8").reshape(32, 64), "b": np.ones(32, jnp.bfloat16)}
    safetensors.numpy.save_file(written, tmp_path / "b.safetensors")
    with rx.FullyShardedStrategy(8, min_size=64).scope():
        other = dense()
    rx.weights.load_safetensors(other, tmp_path / "b.safetensors", {"up/kernel": ("w", np.transpose), "up/bias": "b"})
    np.testing.assert_array_equal(np.asarray(other.weights[0]), written["w"].T.astype("f4"))
    np.testing.assert_array_equal(np.asarray(other.weights[1]), np.ones(32, "f4"))


@pytest.mark.parametrize("length", range(1, 9))
def test_tensors_begin_at_a_multiple_of_eight_bytes(tmp_path: Path, length: int) -> None:
    """As in files of the reference implementation: such tensors can be used where they lie."""
    name, path = "w" * length, tmp_path / "a.safetensors"
    rx.weights.save_safetensors({name: rx.Variable([1.0, 2.0])}, path)
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0
    np.testing.assert_array_equal(safetensors.numpy.load_file(path)[name], [1.0, 2.0])


def test_whatever_is_left_over_is_named_with_what_is_nearest(tmp_path: Path) -> None:
    tensors = {"up/kernl": np.ones((64, 32), "f4"), "up/bias": np.ones(32, "f4"), "extra": np.ones(3, "f4")}
    safetensors.numpy.save_file(tensors, tmp_path / "a.safetensors")
    with rx.FullyShardedStrategy(8).scope():
        model = dense()
    before = values_of(model)
    with pytest.raises(WeightsError) as caught:
        rx.weights.load_safetensors(model, tmp_path / "a.safetensors")
    said = str(caught.value)
    assert "up/kernel' (64, 32) finds no weight in the file. Nearest: 'up/kernl' (64, 32)" in said
    assert "'extra' (3,) of the file finds no variable" in said
    for expected, value in zip(before, values_of(model), strict=True):
        np.testing.assert_array_equal(expected, value)
    rx.weights.load_safetensors(model, tmp_path / "a.safetensors", strict=False)
    np.testing.assert_array_equal(values_of(model)[1], np.ones(32))


def test_a_shape_that_differs_is_an_error_also_if_it_is_not_strict(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"up/kernel": np.ones((32, 64), "f4")}, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match=r"/up/kernel' has shape \(64, 32\), and its weight 'up/kernel'"):
        rx.weights.load_safetensors(dense(), tmp_path / "a.safetensors", strict=False)


def test_names_that_speak_of_nothing_are_refused(tmp_path: Path) -> None:
    rx.weights.save_safetensors(dense(), tmp_path / "a.safetensors")
    with pytest.raises(ArgumentError, match=r"up/kernl.*up/kernel"):
        rx.weights.load_safetensors(dense(), tmp_path / "a.safetensors", {"up/kernl": "up/kernel"})
    with pytest.raises(ArgumentError, match="two variables one tensor"):
        rx.weights.save_safetensors(dense(), tmp_path / "b.safetensors", names=lambda name: "all")
    with pytest.raises(ArgumentError, match="no variables yet"):
        rx.weights.load_safetensors(keras.Sequential([keras.layers.Dense(2)]), tmp_path / "a.safetensors")


def test_variables_of_ours_are_loaded_by_name(tmp_path: Path) -> None:
    with rx.FullyShardedStrategy(8, min_size=8).scope():
        variables = {"a": rx.Variable(np.arange(64.0)), "n": rx.Variable(3)}
    rx.weights.save_safetensors(variables, tmp_path / "a.safetensors")
    variables["a"].assign(np.zeros(64))
    rx.weights.load_safetensors(variables, tmp_path)
    np.testing.assert_array_equal(variables["a"].numpy(), np.arange(64.0))


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="cannot be written to"):
        rx.weights.save_safetensors(dense(), tmp_path / "file" / "a.safetensors")


def test_files_that_the_index_does_not_fit_are_refused(tmp_path: Path) -> None:
    rx.weights.save_safetensors(dense(), tmp_path, max_shard_size=1e-6)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for change, said in [
        ({"weight_map": {"gone": "model-00001-of-00002.safetensors"}}, "has no such tensors"),
        ({"weight_map": {"gone": "../a.safetensors"}}, "not beside it"),
        ({"weight_map": {"gone": 3}}, "weight_map"),
        ({"weight_map": {"gone": "b.safetensors"}}, "cannot be read"),
    ]:
        index.write_text(json.dumps(content | change))
        with pytest.raises(WeightsError, match=said):
            rx.weights.load_safetensors(dense(), tmp_path)
