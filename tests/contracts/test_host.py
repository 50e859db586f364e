"""Who runs programs where there is no strategy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.contracts.host import NO_HOST, host_of
from replicax.errors import ContextError


def test_without_a_strategy_there_is_one_replica_and_nothing_is_placed():
    variable = rx.Variable(jnp.ones((4, 2)))
    placement = NO_HOST.placement
    assert host_of(None) is NO_HOST
    assert (NO_HOST.num_replicas_in_sync, placement.replicas, placement.spans_processes) == (1, 1, False)
    assert placement.variable_sharding(variable) is None
    assert placement.program_sharding(variable, 1) is None
    assert placement.replica_sharding(variable, 1) is None
    assert placement.result_sharding(1) is None
    assert NO_HOST.optimizer_sharding(variable) is None


def test_a_strategy_is_its_own_host():
    strategy = rx.MirroredStrategy(2)
    assert host_of(strategy) is strategy
    assert strategy.placement.is_chief
    assert not strategy.cuts_steps


def test_a_value_that_is_placed_without_a_strategy_is_a_copy():
    variable = rx.Variable(jnp.ones(3))
    (array,) = NO_HOST.placement.load([variable], 1)
    copy = NO_HOST.placement.place(array)
    assert copy is not array
    np.testing.assert_array_equal(copy, array)
    assert NO_HOST.placement.shrunk(array, 1) is array
    assert NO_HOST.placement.spread([array])[0] is array


@pytest.mark.parametrize(
    "ask",
    [
        lambda: NO_HOST.placement.mesh_for(2),
        lambda: NO_HOST.placement.sharding(stacked=True),
        lambda: NO_HOST.replica_context(2),
        lambda: NO_HOST.compile_cut(len, [], [], 1),
    ],
)
def test_what_needs_replicas_is_refused_without_a_strategy(ask):
    with pytest.raises(ContextError):
        ask()


def test_what_was_said_without_a_strategy_is_said_again():
    NO_HOST.advice.add("a step")
    assert "a step" not in NO_HOST.advice
    strategy = rx.MirroredStrategy(1)
    strategy.advice.add("a step")
    assert "a step" in strategy.advice
