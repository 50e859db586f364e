"""Clipping of gradients by their norms; TensorFlow's numbers are in tests/tensorflow/codemod/test_op_numbers.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError


def test_a_norm_that_is_not_finite_gives_nan():
    for bad in (jnp.inf, jnp.nan):
        (one, none), norm = rx.keras.clip_by_global_norm([jnp.array([1.0, bad]), None], 1.0)
        assert none is None
        assert np.isnan(one).all()
        assert not np.isfinite(norm)


def test_a_tensor_is_no_list():
    with pytest.raises(ArgumentError, match=r"not of one tensor, of shape \(2,\)"):
        rx.keras.clip_by_global_norm(jnp.ones(2), 1.0)


def test_a_tensor_of_zeros_has_a_derivative():
    assert np.isfinite(jax.grad(lambda x: rx.keras.clip_by_norm(x, 1.0).sum())(jnp.zeros(3))).all()


def test_each_replica_clips_its_own_gradients():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])

    def step():
        first = rx.get_replica_context().replica_id_in_sync_group == 0
        gradient = jnp.where(first, jnp.array([3.0, 4.0]), jnp.array([0.3, 0.4]))
        return rx.keras.clip_by_global_norm([gradient], 1.0)[0][0]

    one, other = strategy.local_results(strategy.run(step))
    np.testing.assert_allclose(one, [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(other, [0.3, 0.4], rtol=1e-6)
