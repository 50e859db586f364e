"""With fakes that are to JAX and to us what flax's modules are: flax is no dependency."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError


class TraceContextError(Exception):
    """As `flax.errors` has it."""


@jax.tree_util.register_pytree_node_class
class Linear:
    """Changes in place, and is a pytree."""

    __module__ = "flax.nnx.nn.linear"

    def __init__(self, kernel):
        self.kernel = kernel

    def tree_flatten(self):
        return (self.kernel,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Cannot extract graph node from different trace level, got Param( # 1 (4 B)\n  value=..."),
        TraceContextError("Cannot mutate Param from a different trace level (https://flax.readthedocs.io/...)"),
    ],
    ids=["differentiated", "changed"],
)
@pytest.mark.parametrize("eagerly", [False, True])
def test_a_captured_module_is_told_to_be_split(mirrored, error, eagerly):
    def step():
        raise error

    rx.config.run_eagerly(eagerly)
    try:
        with pytest.raises(ProgramError, match=r"nnx\.split.*nnx\.merge.*flax said: Cannot \w+"):
            mirrored(2).run(step)
    finally:
        rx.config.run_eagerly(False)


def test_other_errors_are_the_users(mirrored):
    with pytest.raises(ValueError, match="level of trace"):
        rx.function(lambda: (_ for _ in ()).throw(ValueError("another level of trace")))()


def update(model, batch):
    model.kernel = model.kernel - 1.0
    return jnp.float32(0.0)


def test_a_change_of_a_module_that_is_passed_must_be_returned(mirrored, per_replica):
    two = mirrored(2)
    x = per_replica(two, [1.0], [2.0])
    for call in (
        lambda: two.run(update, args=(Linear(jnp.ones(2)), x)),
        lambda: rx.function(update)(Linear(jnp.ones(2)), jnp.ones(2)),
        lambda: rx.function(lambda model, x: two.run(update, args=(model, x)))({"a": [Linear(jnp.ones(2))]}["a"][0], x),
    ):
        with pytest.raises(
            ProgramError, match=r"changes the Linear .* does not return it.*loss, model = strategy\.run"
        ):
            call()


def test_a_module_that_is_returned_or_its_state_or_that_is_only_read_is_right():
    def whole(model, x):
        return update(model, x), model

    def state(model, x):
        return update(model, x), jax.tree.leaves(model)

    model = Linear(jnp.ones(2))
    _, new = rx.function(whole)(model, jnp.ones(2))
    assert isinstance(new, Linear)
    np.testing.assert_array_equal(new.kernel, [0.0, 0.0])
    np.testing.assert_array_equal(rx.function(state)(model, jnp.ones(2))[1][0], [0.0, 0.0])
    np.testing.assert_array_equal(rx.function(lambda model: model.kernel * 2)(model), [2.0, 2.0])
    np.testing.assert_array_equal(model.kernel, [1.0, 1.0])
