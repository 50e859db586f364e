"""Layers that load in ways of their own, and variables that are assigned arrays of the host."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.contracts.variable_access import array_of
from replicax.errors import WeightsError
from replicax.weights.pieces import ArrayTensor
from replicax.weights.reading import Reading, StoredTensor


class Doubling(keras.layers.Layer):
    """A layer that computes its weight from what is stored, as some models of KerasHub do."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.table = self.add_weight(shape=(64, shape[-1]), initializer="normal", name="table")

    def call(self, x: object) -> object:
        return x @ self.table.value.T

    def save_own_variables(self, store: dict[str, object]) -> None:
        store["half"] = np.asarray(self.table)[::2]

    def load_own_variables(self, store: dict[str, np.ndarray]) -> None:
        half = store["half"]
        assert (half.shape, half.ndim, half.size, len(half)) == ((32, 16), 2, 512, 32)
        self.table.assign(np.repeat(half, 2, axis=0) + 0 * half[0] + half.sum() * 0)


def model() -> keras.Model:
    norm = keras.layers.Normalization(name="norm")
    layers = [norm, Doubling(name="doubling"), keras.layers.Dense(32, name="up"), keras.layers.Dropout(0.5)]
    return keras.Sequential([keras.Input((16,)), *layers])


def strategy() -> rx.Strategy:
    return rx.FullyShardedStrategy(8, min_size=64)


def test_layers_that_compute_what_they_assign(tmp_path: Path) -> None:
    source, x = model(), np.random.default_rng(0).normal(2, 3, (64, 16)).astype("f4")
    source.layers[0].adapt(x)
    source.save_weights(tmp_path / "a.weights.h5")
    plain = model()
    plain.load_weights(tmp_path / "a.weights.h5")
    with strategy().scope():
        sharded = model()
    sharded.load_weights(tmp_path / "a.weights.h5")
    for expected, found in zip(plain.weights, sharded.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(expected), np.asarray(found))
    assert not array_of(sharded.layers[1].table).sharding.is_fully_replicated
    np.testing.assert_allclose(plain.predict(x, verbose=0), sharded.predict(x, verbose=0), rtol=1e-5, atol=1e-5)


def test_a_refused_file_leaves_the_factors_of_lora_as_they_are(tmp_path: Path) -> None:
    """On loading, Keras sets them to zero; the check of the file must not."""

    def dense(units: int) -> keras.Model:
        return keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, name="up"), keras.layers.Dense(units)])

    dense(8).save_weights(tmp_path / "a.weights.h5")
    dense(4).save_weights(tmp_path / "b.weights.h5")
    with strategy().scope():
        tuned = dense(8)
        tuned.layers[0].enable_lora(2)
    factor = tuned.layers[0].lora_kernel_b
    factor.assign(np.ones(factor.shape))
    with pytest.raises(WeightsError, match=r"has shape \(64, 8\), and its weight .* has shape \(64, 4\)"):
        tuned.load_weights(tmp_path / "b.weights.h5")
    np.testing.assert_array_equal(np.asarray(factor), np.ones(factor.shape))
    tuned.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(np.asarray(factor), np.zeros(factor.shape))


def test_files_of_keras_2_and_their_names(tmp_path: Path) -> None:
    """Keras's older format, by order and by name, comes through arrays of the host."""
    source = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, name="up"), keras.layers.Dense(8, name="x")])
    source.save(tmp_path / "a.h5")
    with strategy().scope():
        sharded = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, name="up"), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="Shape mismatch"):
        sharded.load_weights(tmp_path / "a.h5")
    sharded.load_weights(tmp_path / "a.h5", by_name=True)
    np.testing.assert_array_equal(np.asarray(sharded.weights[0]), np.asarray(source.weights[0]))
    assert not array_of(sharded.weights[0]).sharding.is_fully_replicated


def test_an_array_of_the_host_goes_to_the_parts_of_a_variable() -> None:
    chosen = strategy()
    with chosen.scope():
        dense = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, dtype="bfloat16")])
    kernel = dense.weights[0]
    values = np.random.default_rng(0).normal(size=(16, 64))
    plain = keras.Variable(np.zeros((16, 64)), dtype="bfloat16")
    plain.assign(values)
    returned = kernel.assign(values)
    assert returned is array_of(kernel)
    assert array_of(kernel).sharding == chosen.placement.variable_sharding(kernel)
    np.testing.assert_array_equal(np.asarray(kernel), np.asarray(plain))
    values[:] = 0  # The variable has a copy.
    np.testing.assert_array_equal(np.asarray(kernel), np.asarray(plain))
    with pytest.raises(ValueError, match="must match"):
        kernel.assign(np.ones((64, 16)))
    with keras.StatelessScope() as scope:
        kernel.assign(np.ones((16, 64)))
    np.testing.assert_array_equal(np.asarray(scope.get_current_value(kernel)), np.ones((16, 64)))
    np.testing.assert_array_equal(np.asarray(kernel), np.asarray(plain))


def test_a_stored_tensor_is_an_array_to_numpy_and_jax() -> None:
    values = np.arange(6.0).reshape(2, 3)
    tensor = StoredTensor("x", ArrayTensor(values), Reading("file"))
    np.testing.assert_array_equal(tensor + 1, values + 1)
    np.testing.assert_array_equal(np.transpose(tensor), values.T)
    np.testing.assert_array_equal(tensor.reshape(3, 2), values.reshape(3, 2))
    np.testing.assert_array_equal(keras.ops.convert_to_tensor(tensor, "int32"), values.astype("i4"))
    np.testing.assert_array_equal(tensor[1:], values[1:])
    assert np.asarray(tensor, np.float32).dtype == np.float32
    with pytest.raises(AttributeError):
        tensor.nothing  # noqa: B018
