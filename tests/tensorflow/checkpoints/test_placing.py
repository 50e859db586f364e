from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints import TensorFlowCheckpoint
from tests.migrate.bundles import write_bundle
from tests.tensorflow.checkpoints.small import numbers

SIZE = 1024  # A tensor of 4 MiB.
_JAX_KEEPS = 64  # JAX keeps a NumPy array whose address is a multiple of this, and copies any other.


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has what is read lie where JAX copies it. What JAX kept would be a variable's value, and not the reader's."""
    read = TensorFlowCheckpoint.read

    def read_aside(self: TensorFlowCheckpoint, *args: Any) -> np.ndarray:
        found = read(self, *args)
        room = np.empty(found.nbytes + 2 * _JAX_KEEPS, np.uint8)
        begin = -room.ctypes.data % _JAX_KEEPS + found.itemsize
        aside = room[begin : begin + found.nbytes].view(found.dtype).reshape(found.shape)
        aside[...] = found
        return aside

    monkeypatch.setattr(TensorFlowCheckpoint, "read", read_aside)


@pytest.mark.usefixtures("copied")
def test_no_more_than_one_tensor_is_in_host_memory(tmp_path):
    tensors = {f"v{i}": np.full((SIZE, SIZE), float(i), "float32") for i in range(8)}
    write_bundle(tmp_path / "large", tensors)
    del tensors
    variables = {f"v{i}": rx.Variable(np.zeros((SIZE, SIZE), "float32")) for i in range(8)}
    checkpoint = rx.Checkpoint(**variables)
    checkpoint.restore(tmp_path / "large")  # JAX compiles what it needs.
    gc.collect()
    tracemalloc.start()
    try:
        checkpoint.restore(tmp_path / "large")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    one = SIZE * SIZE * 4
    # One that is read, and the same one aside; the one before, which JAX may still copy; and on a busy machine the one
    # before that, which JAX gives back when it is next called.
    assert peak < 4.5 * one, f"{peak / one:.1f} tensors at once"
    assert [float(np.asarray(v.value)[0, 0]) for v in variables.values()] == list(range(8))


def test_integers_that_do_not_fit_are_refused_before_anything_is_assigned(tmp_path):
    write_bundle(tmp_path / "w", {"a": numbers(3), "n": np.array([1, 2**40], "int64")})
    a, n = rx.Variable(np.zeros(3, "float32")), rx.Variable(np.zeros(2, "int32"))
    with pytest.raises(CheckpointError, match=r"int32, the dtype of 'n', cannot hold: \[1099511627776\]"):
        rx.Checkpoint(a=a, n=n).restore(tmp_path / "w")
    assert a.numpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize(("stored", "here"), [("float32", "int32"), ("complex64", "float32")])
def test_numbers_of_a_kind_that_a_variable_cannot_hold_are_refused(stored, here, tmp_path):
    write_bundle(tmp_path / "w", {"a": np.ones(3, stored)})
    with pytest.raises(CheckpointError, match=f"'a' is {here}, which cannot hold 'a': that is {stored}"):
        rx.Checkpoint(a=rx.Variable(np.zeros(3, here))).restore(tmp_path / "w")


@pytest.mark.parametrize(("stored", "here"), [("float64", "float32"), ("int64", "int32"), ("float32", "bfloat16")])
def test_values_take_the_dtype_of_the_variable(stored, here, tmp_path):
    write_bundle(tmp_path / "w", {"a": np.arange(4).astype(stored)})
    variable = rx.Variable(np.zeros(4), dtype=here)
    rx.Checkpoint(a=variable).restore(tmp_path / "w")
    assert str(variable.dtype) == here
    assert np.asarray(variable.value, "float32").tolist() == [0, 1, 2, 3]


def test_a_model_in_mixed_precision_keeps_its_dtypes(tmp_path):
    write_bundle(tmp_path / "w", {"dense/kernel": numbers(4, 3), "dense/bias": numbers(3)})
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype="mixed_bfloat16", name="dense")])
    rx.Checkpoint(model=model).restore(tmp_path / "w")
    np.testing.assert_array_equal(model.get_weights()[0], numbers(4, 3))
