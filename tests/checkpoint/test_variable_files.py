"""Variables written and given their values back."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import restore_variables, write_variables
from replicax.errors import CheckpointError


def test_values_come_back(tmp_path: Path):
    a, b = rx.Variable([1.0, 2.0]), rx.Variable(3)
    path = write_variables(tmp_path / "c", {"a": a, "b": b})
    a.assign([0.0, 0.0])
    b.assign(0)
    restore_variables(path, {"a": a, "b": b})
    np.testing.assert_array_equal(a.numpy(), [1.0, 2.0])
    assert b.numpy() == 3


def test_a_value_that_jax_has_placed_by_default_stays_free(tmp_path: Path):
    a = rx.Variable([1.0])
    restore_variables(write_variables(tmp_path / "c", {"a": a}), {"a": a})
    assert not a.value.committed


def test_random_keys_come_back(tmp_path: Path):
    key = rx.Variable(jax.random.key(3))
    path = write_variables(tmp_path / "c", {"key": key})
    other = rx.Variable(jax.random.key(0))
    restore_variables(path, {"key": other})
    assert jax.random.uniform(other.value) == jax.random.uniform(jax.random.key(3))


def test_keras_variables_come_back(tmp_path: Path):
    variable = keras.Variable([1.0, 2.0])
    path = write_variables(tmp_path / "c", {"v": variable})
    variable.assign([0.0, 0.0])
    restore_variables(path, {"v": variable})
    np.testing.assert_array_equal(np.asarray(variable), [1.0, 2.0])


@pytest.mark.parametrize("aggregation", ["sum", "mean"])
def test_an_accumulator_of_several_replicas_is_one_value(tmp_path: Path, mirrored, aggregation: str):
    def make(replicas: int) -> rx.Variable:
        with mirrored(replicas).scope():
            return rx.Variable(jnp.zeros(2), synchronization="on_read", aggregation=aggregation)

    saved, restored = make(3), make(2)
    mirrored(3).run(lambda: saved.assign_add([1.0, 2.0]))
    restore_variables(write_variables(tmp_path / "c", {"v": saved}), {"v": restored})
    np.testing.assert_allclose(restored.numpy(), saved.numpy())


def test_mirrored_variables_are_restored_under_other_strategies(tmp_path: Path, mirrored):
    with mirrored(3).scope():
        saved = rx.Variable(np.arange(24.0, dtype=np.float32).reshape(8, 3))
    path = write_variables(tmp_path / "c", {"v": saved})
    with rx.FullyShardedStrategy([f"cpu:{i}" for i in range(8)], min_size=1).scope():
        cut = rx.Variable(np.zeros((8, 3), np.float32))
    alone = rx.Variable(np.zeros((8, 3), np.float32))
    for variable in (cut, alone):
        placed = variable.value.sharding
        restore_variables(path, {"v": variable})
        np.testing.assert_array_equal(variable.numpy(), saved.numpy())
        assert variable.value.sharding == placed


@pytest.mark.parametrize("partial", [False, True])
def test_names_that_one_side_lacks(tmp_path: Path, partial: bool):
    a, b, c = rx.Variable(1.0), rx.Variable(2.0), rx.Variable(3.0)
    path = write_variables(tmp_path / "c", {"a": a, "b": b})
    a.assign(0.0)
    if partial:
        restore_variables(path, {"a": a, "c": c}, partial=True)
        assert (a.numpy(), c.numpy()) == (1.0, 3.0)
        return
    with pytest.raises(CheckpointError, match=r"\['b'\].*\['c'\]"):
        restore_variables(path, {"a": a, "c": c})
    assert a.numpy() == 0.0


def test_nothing_is_restored_if_one_shape_differs(tmp_path: Path):
    a, b = rx.Variable(1.0), rx.Variable([2.0])
    path = write_variables(tmp_path / "c", {"a": a, "b": b})
    a.assign(0.0)
    with pytest.raises(CheckpointError, match="'b' has shape"):
        restore_variables(path, {"a": a, "b": rx.Variable([1.0, 2.0])})
    assert a.numpy() == 0.0
