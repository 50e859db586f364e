from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError

ROWS = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
SEQUENCES = np.random.default_rng(0).normal(size=(4, 5, 3)).astype("float32")


# The loss-scale optimizer.


@pytest.fixture
def scaled(two):
    """A layer, its loss-scale optimizer, and a replica's step."""
    with two.scope():
        layer = keras.layers.Dense(1)
        layer.build((None, 3))
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=1024.0, dynamic_growth_steps=2
        )

    def step(x):
        def loss_fn():
            return optimizer.scale_loss(jnp.sum(layer(x) ** 2))

        gradients = rx.grad(loss_fn, layer.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    return layer, optimizer, step


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_overflow_on_one_replica_skips_the_step_on_all_and_halves_the_scale(two, scaled, per_replica, bad):
    layer, optimizer, step = scaled
    rows = ROWS.copy()
    rows[3, 0] = bad
    before = layer.get_weights()
    two.run(step, args=(per_replica(two, rows[:2], rows[2:]),))
    np.testing.assert_array_equal(layer.get_weights()[0], before[0])
    assert float(optimizer.dynamic_scale.value) == 512.0
    assert int(optimizer.iterations.value) == 0


def test_a_finite_step_updates_as_without_scaling_and_steps_in_a_row_double_the_scale(two, scaled, per_replica):
    layer, optimizer, step = scaled
    x = per_replica(two, ROWS[:2], ROWS[2:])
    kernel, bias = layer.get_weights()
    residual = ROWS @ kernel + bias
    two.run(step, args=(x,))
    np.testing.assert_allclose(layer.get_weights()[0], kernel - 0.1 * 2 * ROWS.T @ residual, rtol=1e-4, atol=1e-5)
    assert float(optimizer.dynamic_scale.value) == 1024.0
    two.run(step, args=(x,))
    assert float(optimizer.dynamic_scale.value) == 2048.0
    assert int(optimizer.iterations.value) == 2


def test_the_loss_scale_optimizer_steps_in_a_function_without_replicas(scaled):
    layer, optimizer, step = scaled
    kernel, bias = layer.get_weights()
    rx.function(step)(ROWS)
    np.testing.assert_allclose(
        layer.get_weights()[0], kernel - 0.2 * ROWS.T @ (ROWS @ kernel + bias), rtol=1e-4, atol=1e-5
    )
    rx.function(step)(np.full_like(ROWS, np.inf))
    assert float(optimizer.dynamic_scale.value) == 512.0
    assert int(optimizer.iterations.value) == 1


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains_float32_weights(two, per_replica, policy):
    keras.utils.set_random_seed(0)

    def model_of(dtype):
        return keras.Sequential([keras.layers.Dense(4, dtype=dtype), keras.layers.Dense(1, dtype=dtype)])

    with two.scope():
        model, reference = model_of(policy), model_of("float32")
        model.build((None, 3))
        reference.build((None, 3))
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=128.0)
        optimizers = [scaled, keras.optimizers.SGD(0.01)]
    reference.set_weights(model.get_weights())
    start = model.get_weights()[0]

    def step(model, optimizer, x):
        def loss_fn():
            loss = jnp.sum(model(x).astype("float32") ** 2)
            return optimizer.scale_loss(loss)

        gradients = rx.grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return gradients

    x = per_replica(two, ROWS[:2], ROWS[2:])
    for _ in range(2):
        gradients = two.run(step, args=(model, optimizers[0], x))
        two.run(step, args=(reference, optimizers[1], x))
    assert {gradient.dtype for gradient in gradients} == {jnp.dtype("float32")}
    assert model.weights[0].value.dtype == "float32"
    for weight, expected in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, atol=2e-2)
    assert np.abs(model.get_weights()[0] - start).max() > 0.01


# Recurrent layers.


RECURRENT = {
    "lstm": lambda: keras.layers.LSTM(2),
    "gru": lambda: keras.layers.GRU(2),
    "simple": lambda: keras.layers.SimpleRNN(2),
    "bidirectional": lambda: keras.layers.Bidirectional(keras.layers.LSTM(2)),
    "stacked cells": lambda: keras.layers.RNN([keras.layers.GRUCell(2), keras.layers.LSTMCell(2)]),
    "masked": lambda: keras.Sequential([keras.layers.Masking(), keras.layers.LSTM(2)]),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_have_the_gradients_of_one_device(two, per_replica, name):
    with two.scope():
        layer = RECURRENT[name]()
        layer.build((None, 5, 3))
    gradients = lambda x: rx.grad(lambda: jnp.sum(layer(x) ** 2), layer.trainable_variables)()  # noqa: E731
    result = two.run(gradients, args=(per_replica(two, SEQUENCES[:2], SEQUENCES[2:]),))
    for gradient, expected in zip(result, gradients(SEQUENCES), strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


def test_a_stateful_recurrent_layer_works_on_one_replica_and_is_refused_on_more(two, mirrored, per_replica):
    one = mirrored(1)

    def trained_on(strategy):
        with strategy.scope():
            layer = keras.layers.LSTM(2, stateful=True)
            layer.build((4, 5, 3))
        return layer

    layer, reference = trained_on(one), keras.layers.LSTM(2)
    reference.build((4, 5, 3))
    reference.set_weights(layer.get_weights()[:3])
    result = one.run(lambda x: layer(x), args=(SEQUENCES,))
    np.testing.assert_allclose(result, reference(SEQUENCES), rtol=1e-5, atol=1e-6)

    layer = trained_on(two)
    with pytest.raises(rx.errors.ContextError, match="stateful=True"):
        two.run(lambda x: layer(x), args=(per_replica(two, SEQUENCES, SEQUENCES),))


def test_recurrent_layers_still_work_outside_of_programs():
    layer = keras.layers.GRU(2)
    assert layer(SEQUENCES).shape == (4, 2)
    assert rx.function(lambda x: layer(x))(SEQUENCES).shape == (4, 2)


# Variables that are made of a value.

LAZY = [
    cls
    for cls in vars(keras.optimizers).values()
    if isinstance(cls, type)
    and issubclass(cls, keras.optimizers.Optimizer)
    and cls.__name__ not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
]


@pytest.mark.daily(5)
@pytest.mark.parametrize("optimizer_class", LAZY, ids=lambda cls: cls.__name__)
def test_any_optimizer_can_be_built_by_its_first_step(two, per_replica, optimizer_class):
    def trained(build_first):
        keras.utils.set_random_seed(0)
        with two.scope():
            layer = keras.layers.Dense(2)
            layer.build((None, 3))
            optimizer = optimizer_class(0.1)
            if build_first:
                optimizer.build(layer.trainable_variables)

        def step(x):
            gradients = rx.grad(lambda: jnp.sum(layer(x) ** 2), layer.trainable_variables)()
            optimizer.apply(gradients, layer.trainable_variables)

        for _ in range(2):
            two.run(step, args=(per_replica(two, ROWS[:2], ROWS[2:]),))
        return [*layer.get_weights(), *(variable.numpy() for variable in optimizer.variables)]

    for late, early in zip(trained(False), trained(True), strict=True):
        np.testing.assert_array_equal(late, early)


@pytest.mark.parametrize("dtype", [None, "int32"])
def test_a_layer_that_makes_a_variable_of_a_number_can_be_built_by_its_first_step(two, per_replica, dtype):
    class Scaled(keras.layers.Layer):
        def build(self, shape):
            self.factor = keras.Variable([[2.0, 3.0, 4.0]], dtype=dtype, name="factor")

        def call(self, x):
            return x * keras.ops.cast(self.factor, x.dtype)

    with two.scope():
        layer = Scaled()
    result = two.run(lambda x: layer(x), args=(per_replica(two, ROWS[:2], ROWS[2:]),))
    np.testing.assert_allclose(np.concatenate(two.experimental_local_results(result)), ROWS * [2, 3, 4], rtol=1e-6)
    assert layer.factor.dtype == (dtype or "float32")
    assert layer.factor.shape == (1, 3)


@pytest.mark.parametrize(
    "assign", [lambda v, x: v.assign(x), lambda v, x: v.assign_add(x), lambda v, x: v.assign(x * 2)]
)
@pytest.mark.parametrize("transformed", [jax.jit, jax.grad, jax.vmap, lambda f: lambda x: jax.lax.map(f, x[None])[0]])
def test_an_assignment_in_what_jax_traces_is_refused_and_leaves_no_traced_value(mirrored, assign, transformed):
    with mirrored(2).scope():
        variable = keras.Variable(3.0)
        own = rx.Variable(3.0)

    def f(x, v):
        assign(v, x)
        return x * 2.0

    for v in (variable, own):
        x = jnp.ones(1 if transformed is jax.vmap else ())
        with pytest.raises(ProgramError, match=r"was assigned inside a function that JAX traces .* @rx.function"):
            transformed(lambda x, v=v: f(x, v))(x)
        assert float(v.numpy()) == 3.0
    rx.function(lambda x: f(x, variable))(jnp.float32(4.0))  # is what the message says


def test_layers_of_keras_go_through_jit_in_keras_own_ways():
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    x = jnp.ones((2, 4))
    state = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]
    _, changed = jax.jit(lambda *state: model.stateless_call(*state, x, training=True))(*state)
    assert len(changed) == len(state[1])
    with pytest.raises(ProgramError, match="was assigned inside a function that JAX traces"):
        jax.jit(lambda x: model(x, training=True))(x)
    model(x, training=True)
