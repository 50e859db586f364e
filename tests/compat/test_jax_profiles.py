"""A profile of one step in memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from replicax.compat import jax_profiles
from replicax.compat.jax_profiles import _length, _outside_of_collectives
from tests.compat.guards import needs


def test_a_profile_has_the_operations_of_a_step():
    step = jax.jit(lambda x: jnp.sin(x @ x).sum())
    x = jnp.ones((64, 64))
    step(x).block_until_ready()
    profile = needs("jaxlib", "ProfilerSession", jax_profiles.begun)
    step(x).block_until_ready()
    assert jax_profiles.own_seconds(jax_profiles.ended(profile), 1) > 0


def test_the_users_own_profile_goes_first(tmp_path):
    with jax.profiler.trace(str(tmp_path)):
        assert jax_profiles.begun() is None


@pytest.mark.parametrize("name", ["all-reduce.3", "psum_invariant.8", "all_gather", "ncclDevKernel_AllReduce_Sum"])
def test_collectives_are_known_by_their_names(name):
    assert jax_profiles.is_collective(name, {"hlo_op": "fusion"})
    assert not jax_profiles.is_collective("fusion.2", {"hlo_op": "dot.1"})


def test_time_in_which_all_devices_are_in_collectives_is_not_ones_own():
    operations = [(0, 4, False), (4, 10, True), (0, 6, False), (6, 10, True), (10, 12, False)]
    assert _outside_of_collectives(operations, 2) == 12 - 4  # One device still computes from 4 to 6.
    assert _outside_of_collectives(operations, 3) == 12


def test_operations_that_run_at_once_count_once():
    assert _length([(0, 4), (2, 5), (7, 8)]) == 6
