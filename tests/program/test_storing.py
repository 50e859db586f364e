"""Whatever raises in a step leaves its variables as they were, or as the whole step makes them."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

PACKAGE = str(pathlib.Path(rx.__file__).parent)
ROWS = np.arange(12.0, dtype=np.float32).reshape(6, 2) / 10


class Training:
    """A model with all kinds of state under a strategy, and a step that changes each of them."""

    def __init__(self, strategy, built=True):
        self.strategy, self.fails = strategy, False
        with strategy.scope():
            self.model = keras.Sequential(
                [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1, seed=1)]
            )
            self.optimizer = keras.optimizers.Adam(0.1)
            self.metric = keras.metrics.Mean()
            self.counter = rx.Variable(0)
            self.own = rx.Variable(0.0, synchronization="on_read", aggregation="sum")
            if built:
                self.model.build((None, 2))
                self.optimizer.build(self.model.trainable_variables)

    def step(self, rows):
        def loss():
            return rx.compute_average_loss(jnp.sum(self.model(rows, training=True) ** 2, axis=-1))

        value, gradients = rx.value_and_grad(loss, self.model.trainable_variables)()
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.metric.update_state(value)
        self.counter.assign_add(1)
        self.own.assign_add(jnp.sum(rows))
        return value

    def batch(self, rows=ROWS):
        (batch,) = self.strategy.distribute_dataset([rows])
        return batch

    def run(self, rows=ROWS):
        return self.strategy.run(self.step, args=(self.batch(rows),))

    def variables(self):
        return [*self.model.variables, *self.optimizer.variables, *self.metric.variables, self.counter, self.own]

    def values(self):
        assert not any(isinstance(variable._value, jax.core.Tracer) for variable in self.variables())
        return [np.array(variable._value) for variable in self.variables()]


def same(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


STRATEGIES = {
    "mirrored": lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"]),
    "central": lambda: rx.CentralStorageStrategy(["cpu:1", "cpu:2"], parameter_device="cpu:0"),
    "sharded": lambda: rx.FullyShardedStrategy(["cpu:0", "cpu:1"]),
}


@pytest.fixture(params=STRATEGIES)
def training(request):
    return Training(STRATEGIES[request.param]())


# Tracing.


@pytest.mark.daily(3)
@pytest.mark.parametrize("transform", [jax.jit, jax.grad, lambda f: lambda rows: jax.vmap(f)(rows[None])])
@pytest.mark.parametrize("built", [True, False], ids=["built", "made in the call"])
def test_a_step_inside_a_function_that_jax_traces_changes_nothing(transform, built):
    training = Training(STRATEGIES["mirrored"](), built)

    def outer(rows):
        return training.strategy.run(training.step, args=(rows,))

    with pytest.raises(rx.errors.ProgramError, match=r"inside a function that JAX traces.*@rx\.function"):
        transform(outer)(ROWS)
    before = training.values()
    with pytest.raises(rx.errors.ProgramError, match="inside a function that JAX traces"):
        transform(outer)(ROWS)
    assert same(training.values(), before)
    training.run()
    assert not same(training.values(), before)


def test_an_array_assigned_inside_a_function_that_jax_traces_does_not_become_a_tracer(training):
    with pytest.raises(rx.errors.ProgramError, match="inside a function that JAX traces"):
        jax.jit(lambda: training.counter.assign(np.int32(7)))()
    with pytest.raises(rx.errors.ProgramError, match="inside a function that JAX traces"):
        jax.jit(lambda: training.counter.assign(jnp.int32(7)))()
    assert training.counter.numpy() == 0


@pytest.fixture
def read_by_step():
    """A variable that is not on the mesh yet, and a step and a function that multiply by it."""
    variable = rx.Variable(2.0, name="factor")
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    multiply = rx.function(lambda x: x * variable.value)
    return variable, (lambda x: strategy.run(lambda x: x * variable.value, args=(x,))), multiply


@pytest.mark.parametrize("which", [1, 2], ids=["run", "function"])
def test_a_function_that_only_reads_may_be_differentiated_and_mapped_and_moves_nothing(read_by_step, which):
    """Moving the variable there must not store a tracer; and the next call takes its next value."""
    variable, multiply = read_by_step[0], read_by_step[which]
    for factor in (2.0, 5.0):
        variable.assign(factor)
        assert float(jax.grad(multiply)(3.0)) == factor
        assert jax.vmap(multiply)(jnp.ones(2)).tolist() == [factor, factor]
        assert float(variable.value) == factor


@pytest.mark.parametrize("which", [1, 2], ids=["run", "function"])
@pytest.mark.parametrize("compiled", [jax.jit, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))])
def test_a_function_that_reads_is_refused_where_jax_would_keep_the_value(read_by_step, which, compiled):
    variable, multiply = read_by_step[0], read_by_step[which]
    with pytest.raises(rx.errors.ProgramError, match=r"reads variables \('factor'\).*keep the values.*@rx\.function"):
        compiled(multiply)(3.0)
    assert float(variable.value) == 2.0


def test_a_pure_function_is_compiled_by_jax_with_a_run_in_it():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    multiply = jax.jit(lambda state, x: strategy.run(lambda state, x: state * x, args=(state, x)))
    assert [float(multiply(state, 3.0)) for state in (2.0, 5.0)] == [6.0, 15.0]


# Running.


def failing(fails):
    def on_host(rows):
        if fails:
            raise ValueError("the host's function")
        return rows

    return on_host


@pytest.mark.daily(2)
@pytest.mark.parametrize("rows", [ROWS, ROWS[:1]], ids=["full", "partial"])
def test_a_function_of_the_host_that_fails_in_a_program_leaves_the_variables(training, rows):
    fails = []

    def step(rows):
        return training.step(jax.pure_callback(failing(fails), rows, rows, vmap_method="sequential"))

    def run():
        return jax.block_until_ready(training.strategy.run(step, args=(training.batch(rows),)))

    run()
    before = training.values()
    fails.append(True)
    with pytest.raises(rx.errors.ProgramError, match=r"jax\.pure_callback \(failing.*on_host\).*the host's function"):
        run()
    assert same(training.values(), before)
    fails.clear()
    run()
    assert not same(training.values(), before)


def test_values_that_a_failed_program_has_overwritten_are_named_with_what_to_do():
    variable = rx.Variable(jnp.arange(3.0), name="weights")

    @rx.function
    def step():
        variable.assign(variable + 1)

    step()
    variable._value.delete()
    with pytest.raises(rx.errors.ProgramError, match=r"1 variables are lost \('weights'\).*Restore.*checkpoint"):
        step()
    variable.assign([1.0, 2.0, 3.0])
    step()
    assert variable.numpy().tolist() == [2.0, 3.0, 4.0]
