"""Rows of tables are updated with the gradients that an optimizer applies, once; other steps are refused."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from tests.tables.test_layer import Single


def refused(step: Any, message: str, single: Single) -> None:
    with pytest.raises(rx.errors.ProgramError, match=message):
        single.step(step, [1, 2])
    np.testing.assert_array_equal(single.rows(), 0)


@pytest.mark.parametrize(
    ("options", "steps", "message"),
    [({}, 1, "would update rows after each"), ({"aggregation": None}, 0, "leaves each replica its own gradients")],
)
def test_gradients_that_are_not_those_of_the_step_are_refused(options: Any, steps: int, message: str):
    single = Single()

    def step(ids: Any) -> None:
        fn = rx.grad(lambda ids: single.other.value * jnp.sum(single.layer(ids)), single.variables, **options)
        gradients = (rx.accumulate_gradients(fn, steps) if steps else fn)(ids)
        single.optimizer.apply(gradients, single.variables)

    refused(step, message, single)


def test_gradients_that_nobody_applies_are_refused():
    single = Single()

    def step(ids: Any) -> None:
        rx.grad(lambda: single.other.value * jnp.sum(single.layer(ids)), single.variables)()

    refused(step, "no optimizer has applied them", single)


def test_gradients_of_two_losses_are_refused_unless_each_is_applied():
    single = Single()

    def loss(ids: Any) -> Any:
        return jnp.sum(single.layer(ids))

    def both(ids: Any) -> None:
        rx.grad(lambda: single.other.value * loss(ids), single.variables)()
        single.train(lambda: loss(ids))

    refused(both, "would be updated twice", single)

    def in_turn(ids: Any) -> None:
        single.train(lambda: loss(ids))
        single.train(lambda: loss(ids))

    np.testing.assert_allclose(single.step(in_turn, [1, 2]), [0, -2, -2, 0, 0, 0, 0, 0])


def test_the_same_holds_outside_of_programs():
    single = Single(1)
    ids = np.array([1, 2], "int32")
    with single.strategy.scope():
        single.train(lambda: jnp.sum(single.layer(ids)) + jnp.sum(single.layer(ids + 1)))
        np.testing.assert_allclose(single.rows(), [0, -1, -2, -1, 0, 0, 0, 0])
        rx.grad(lambda: single.other.value * jnp.sum(single.layer(ids)), single.variables)()
        with pytest.raises(rx.errors.ProgramError, match="no optimizer has applied the first"):
            rx.grad(lambda: single.other.value * jnp.sum(single.layer(ids)), single.variables)()


def test_a_frozen_layer_stays_and_may_accumulate():
    single = Single()
    single.layer.trainable = False
    other = rx.Variable(1.0)

    def step(ids: Any) -> None:
        fn = rx.grad(lambda ids: jnp.sum(single.layer(ids)) * other.value, [other])
        rx.accumulate_gradients(fn, 1)(ids)

    assert single.layer.trainable_variables == []
    np.testing.assert_array_equal(single.step(step, [1, 2]), 0)


def test_without_other_variables_each_gradient_is_a_step():
    single = Single()

    def step(ids: Any) -> None:
        for _ in range(2):
            rx.grad(lambda: jnp.sum(single.layer(ids)), single.layer.trainable_variables)()

    np.testing.assert_allclose(single.step(step, [1, 2]), [0, -2, -2, 0, 0, 0, 0, 0])


def test_a_penalty_of_gradients_reaches_the_rows():
    """The loss is the square of the derivative of `weight * sum(rows)`: each row gets twice the sum of the rows."""
    single, weight, ids = Single(1), rx.Variable(3.0), np.array([1, 2], "int32")

    @rx.function
    def plain() -> None:
        single.train(lambda: jnp.sum(single.layer(ids)))

    @rx.function
    def penalized() -> None:
        variables = [weight, *single.layer.trainable_variables]
        inner = rx.grad(lambda: weight.value * jnp.sum(single.layer(ids)), variables)
        single.train(lambda: jnp.sum(inner()[0]) ** 2)

    with single.strategy.scope():
        plain()
        penalized()
    np.testing.assert_allclose(single.rows(), [0, 7, 7, 0, 0, 0, 0, 0])
