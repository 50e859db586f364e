from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from replicax.collectives import RingAllReduce


@settings(max_examples=15)
@given(count=st.integers(1, 8), shape=st.lists(st.integers(0, 7), max_size=3), seed=st.integers(0, 99))
def test_any_size_goes_round_any_ring(replicas, same_everywhere, count, shape, seed):
    values = np.random.default_rng(seed).normal(size=(count, *shape)).astype("float32")
    [result] = jax.jit(replicas(count).reducer(RingAllReduce()))(values)
    np.testing.assert_allclose(same_everywhere(result), values.sum(axis=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_each_buffer_takes_n_minus_1_steps_twice(replicas, count_ops, count):
    hlo = replicas(count).hlo(RingAllReduce(), [jnp.ones((count, 24)), jnp.ones((count, 2, 2)), jnp.ones((count, 0))])
    assert count_ops(hlo, "all-reduce") == 0
    assert count_ops(hlo, "collective-permute") == 2 * 2 * (count - 1)


def test_a_step_sends_one_chunk(replicas):
    hlo = replicas(8).hlo(RingAllReduce(), [jnp.ones((8, 24))])
    sends = [
        line for line in hlo.splitlines() if " collective-permute(" in line or " collective-permute-start(" in line
    ]
    assert all("f32[3]" in send for send in sends)
