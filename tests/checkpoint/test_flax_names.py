"""Modules of flax's nnx in checkpoints: restored where they are, with their optimizers and random streams."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.checkpoint import entries
from replicax.errors import CheckpointError

nnx = pytest.importorskip("flax.nnx")


def trainer(seed):
    model = nnx.Sequential(nnx.Linear(3, 2, rngs=nnx.Rngs(seed)), nnx.Dropout(0.5, rngs=nnx.Rngs(seed + 1)))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def test_names_follow_the_attributes_and_shared_variables_count_once(tmp_path):
    model, _ = trainer(0)
    shared = nnx.List([model.layers[0], model.layers[0].kernel])
    path = rx.Checkpoint(layer=model.layers[0]).write(tmp_path / "one")
    assert sorted(entries(path)) == ["layer/bias", "layer/kernel"]
    path = rx.Checkpoint(both=shared).write(tmp_path / "two")
    assert sorted(entries(path)) == ["both/0/bias", "both/0/kernel"]


def test_variables_are_restored_in_place(tmp_path):
    model, optimizer = trainer(0)
    model(np.ones((1, 3), np.float32))
    optimizer.step[...] += 4
    saved = rx.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "c")
    other, its_optimizer = trainer(7)
    kernel = other.layers[0].kernel
    rx.Checkpoint(model=other, optimizer=its_optimizer).restore(saved).assert_consumed()
    assert other.layers[0].kernel is kernel
    np.testing.assert_array_equal(kernel[...], model.layers[0].kernel[...])
    assert (int(its_optimizer.step[...]), int(other.layers[1].rngs.count[...])) == (4, 1)
    keys = [jax.random.key_data(each.layers[1].rngs.key[...]) for each in (model, other)]
    np.testing.assert_array_equal(*keys)


def test_an_optimizer_of_another_kind_is_refused(tmp_path):
    model, optimizer = trainer(0)
    saved = rx.Checkpoint(optimizer=optimizer).save(tmp_path / "c")
    other = nnx.Optimizer(model, optax.adabelief(1e-2), wrt=nnx.Param)
    with pytest.raises(CheckpointError, match=r"ScaleByAdamState.*ScaleByBeliefState"):
        rx.Checkpoint(optimizer=other).restore(saved)


def test_a_state_and_a_variable_with_a_pytree(tmp_path):
    state = nnx.state(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    pair = nnx.Variable((jnp.ones(2), jnp.zeros(3)))
    saved = rx.Checkpoint(state=state, pair=pair).save(tmp_path / "c")
    new = nnx.state(nnx.Linear(3, 2, rngs=nnx.Rngs(1)))
    other = nnx.Variable((jnp.zeros(2), jnp.ones(3)))
    rx.Checkpoint(state=new, pair=other).restore(saved)
    np.testing.assert_array_equal(new["kernel"][...], state["kernel"][...])
    np.testing.assert_array_equal(other.get_value()[0], [1.0, 1.0])
    np.testing.assert_array_equal(other.get_value()[1], [0.0, 0.0, 0.0])
