"""Who runs programs where there is no strategy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.contracts.strategy import NULL_STRATEGY, or_null
from replicax.errors import ContextError


def test_without_a_strategy_there_is_one_replica_and_nothing_is_placed():
    variable = rx.Variable(jnp.ones((4, 2)))
    placement = NULL_STRATEGY.placement
    assert or_null(None) is NULL_STRATEGY
    assert (NULL_STRATEGY.num_replicas_in_sync, placement.replicas, placement.spans_processes) == (1, 1, False)
    assert placement.variable_sharding(variable) is None
    assert placement.program_sharding(variable, 1) is None
    assert placement.replica_sharding(variable, 1) is None
    assert placement.result_sharding(1) is None
    assert NULL_STRATEGY.optimizer_sharding(variable) is None


def test_a_strategy_is_its_own_host():
    strategy = rx.MirroredStrategy(2)
    assert or_null(strategy) is strategy
    assert strategy.placement.is_chief
    assert not strategy.cuts_steps


def test_a_value_that_is_placed_without_a_strategy_is_a_copy():
    variable = rx.Variable(jnp.ones(3))
    (array,) = NULL_STRATEGY.placement.load([variable], 1)
    copy = NULL_STRATEGY.placement.place(array)
    assert copy is not array
    np.testing.assert_array_equal(copy, array)
    assert NULL_STRATEGY.placement.shrunk(array, 1) is array
    assert NULL_STRATEGY.placement.spread([array])[0] is array


@pytest.mark.parametrize(
    "ask",
    [
        lambda: NULL_STRATEGY.placement.mesh_for(2),
        lambda: NULL_STRATEGY.placement.sharding(stacked=True),
        lambda: NULL_STRATEGY.replica_context(2),
        lambda: NULL_STRATEGY.compile_cut(len, [], [], 1),
    ],
)
def test_what_needs_replicas_is_refused_without_a_strategy(ask):
    with pytest.raises(ContextError):
        ask()


def test_what_was_said_without_a_strategy_is_said_again():
    NULL_STRATEGY.advice.add("a step")
    assert "a step" not in NULL_STRATEGY.advice
    strategy = rx.MirroredStrategy(1)
    strategy.advice.add("a step")
    assert "a step" in strategy.advice
