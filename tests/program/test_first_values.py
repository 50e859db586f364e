"""First values as programs: what is traced of an initializer, and where it is cut into parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from replicax.program.first_values import traced_value

SHAPE = (4, 6)


def of(initializer, shape=SHAPE, dtype="float32"):
    return traced_value(lambda: initializer(shape, dtype=dtype))


def same(value, expected):
    whole, *_ = value.computed()
    np.testing.assert_array_equal(np.asarray(whole), np.asarray(expected), strict=True)


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", ["glorot_uniform", "he_normal", "zeros", "orthogonal", "identity"])
def test_what_is_computed_is_what_the_initializer_returns(name):
    initializer = keras.initializers.get(name)
    value = of(initializer)
    assert (value.shape, value.dtype) == (SHAPE, np.float32)
    same(value, initializer(SHAPE, dtype="float32"))


def test_programs_that_differ_in_seeds_and_numbers_only_have_one_key():
    one, other = (keras.initializers.RandomNormal(0.1 * seed, 0.5 + seed, seed=seed) for seed in (1, 2))
    assert of(one).key == of(other).key
    assert hash(of(one).key) == hash(of(other).key)
    assert of(one).key != of(one, (4, 8)).key
    assert of(one).key != of(keras.initializers.RandomUniform(seed=1)).key
    assert of(one).key != of(one, dtype="float16").key


@pytest.mark.parametrize(
    ("function", "by_element"),
    [
        (lambda: jax.random.normal(jax.random.key(1), SHAPE) * 2, True),
        (lambda: jnp.ones(SHAPE) / jnp.sum(jnp.ones(SHAPE)), False),
        (lambda: jnp.linalg.qr(jnp.ones((4, 4)))[0], False),
        (lambda: jax.random.normal(jax.random.key(1, impl="rbg"), SHAPE), False),
        (lambda: jax.random.gamma(jax.random.key(1), 2.0, SHAPE), False),
        (lambda: jnp.concatenate([jnp.zeros((2, 6)), jnp.ones((2, 6))]), True),
    ],
)
def test_a_value_is_by_element_if_no_number_depends_on_its_neighbours(function, by_element):
    assert traced_value(function).is_by_element is by_element


def test_bits_that_depend_on_the_whole_shape_are_not_by_element():
    with jax.threefry_partitionable(False):
        assert not of(keras.initializers.RandomNormal(seed=1)).is_by_element


def test_a_seed_generator_goes_on_when_the_value_has_been_computed():
    drawn, expected = (keras.random.SeedGenerator(3) for _ in range(2))
    value = of(keras.initializers.RandomNormal(seed=drawn))
    np.testing.assert_array_equal(drawn.state.numpy(), expected.state.numpy())
    wanted = keras.initializers.RandomNormal(seed=expected)(SHAPE, dtype="float32")
    whole, *changed = value.computed()
    value.note(changed)
    np.testing.assert_array_equal(whole, wanted)
    np.testing.assert_array_equal(drawn.state.numpy(), expected.state.numpy())


def test_what_cannot_be_traced_stands_for_nothing():
    assert traced_value(lambda: jnp.ones(SHAPE) * float(jnp.ones(()))) is None
    assert traced_value(lambda: keras.random.normal(SHAPE)) is None  # Keras draws no global seed in a trace.

    def wrong():
        raise ValueError("no")

    assert traced_value(wrong) is None  # Whoever calls it sees the error.
    assert traced_value(lambda: keras.random.normal(SHAPE, seed=keras.random.SeedGenerator(1))) is None


def test_what_another_trace_computes_stands_for_nothing():
    found = []

    def outer(x):
        found.append(traced_value(lambda: x * 1.0))
        return x

    jax.make_jaxpr(outer)(jnp.ones(3))
    assert found == [None]


def test_an_array_is_a_constant():
    array = np.arange(24.0, dtype="float32").reshape(SHAPE)
    value = traced_value(lambda: jnp.asarray(array))
    assert value.is_constant
    assert not value.shapes
    same(value, array)


def test_nothing_is_computed_where_values_are_computed_at_once():
    with jax.ensure_compile_time_eval():
        value = of(keras.initializers.RandomNormal(seed=1))
    assert value.shapes == {(), SHAPE}
