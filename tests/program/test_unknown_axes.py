from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import replicax as rx
from replicax.errors import ProgramError


def mean_of_gradients(rows):
    return jax.lax.pmean({"w": jnp.sum(rows)}, axis_name="batch")


def mean_of_what_is_equal(rows):
    return jax.lax.pmean(jnp.float32(1.0), axis_name="batch")


def number(rows):
    return jax.lax.axis_index("batch")


@pytest.mark.parametrize("of", [mean_of_gradients, mean_of_what_is_equal, number, jax.jit(mean_of_gradients)])
def test_an_axis_that_pmap_had_is_told_what_it_is_called_here(two, per_replica, of):
    rows = per_replica(two, [1.0, 2.0], [3.0, 4.0])
    with pytest.raises(ProgramError, match="no axis 'batch' here: the axis of the replicas is called 'replica'"):
        two.run(of, args=(rows,))


def test_on_one_device_too():
    with pytest.raises(ProgramError, match="'replica'"):
        rx.OneDeviceStrategy("cpu:0").run(mean_of_gradients, args=(jnp.ones(2),))


def test_an_error_of_the_users_own_stays_what_it_is(two):
    def asserts():
        assert two is None, "mine"

    with pytest.raises(AssertionError, match="mine"):
        two.run(asserts)
    with pytest.raises(NameError, match="forgotten"):
        two.run(lambda: forgotten)  # noqa: F821
