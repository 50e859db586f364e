"""Variables that are made and assigned inside the first step: what `build` assigns must not be lost."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError

ROWS = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


class Lookahead(keras.optimizers.SGD):
    """Keeps a slow copy of each weight, made of it when it is built; `build` makes nothing else."""

    def build(self, variables):
        super().build(variables)
        self.slow = self.add_optimizer_variables(variables, "slow")
        for slow, variable in zip(self.slow, variables, strict=True):
            slow.assign(variable)

    def update_step(self, gradient, variable, learning_rate):
        slow = self.slow[self._get_variable_index(variable)]
        self.assign(variable, 0.5 * (variable - learning_rate * gradient) + 0.5 * slow)
        self.assign(slow, 0.9 * slow + 0.1 * variable)


OPTIMIZERS = {
    "schedule free": lambda: keras.optimizers.ScheduleFreeAdamW(0.1),
    "schedule free, all options": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.ScheduleFreeAdamW(0.1, use_ema=True, gradient_accumulation_steps=2), initial_scale=8.0
    ),
    "lookahead": lambda: Lookahead(0.1),
}


def batch_of(strategy):
    (batch,) = strategy.distribute_dataset([ROWS])
    return batch


def trained(strategy, make, build_first, steps=3):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
        optimizer = make()
        if build_first:
            optimizer.build(layer.trainable_variables)

    def step(x):
        loss_fn = lambda: optimizer.scale_loss(jnp.sum(layer(x) ** 2))  # noqa: E731
        optimizer.apply(rx.grad(loss_fn, layer.trainable_variables)(), layer.trainable_variables)

    for _ in range(steps):
        strategy.run(step, args=(batch_of(strategy),))
    return [*layer.get_weights(), *(variable.numpy() for variable in optimizer.variables)]


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_copies_weights_can_be_built_by_its_first_step(two, name):
    one = rx.OneDeviceStrategy("cpu:0")
    assert_close(trained(two, OPTIMIZERS[name], False), trained(one, OPTIMIZERS[name], True))


@pytest.mark.nightly
def test_it_can_also_where_operations_run_one_by_one(two, eagerly):
    with two.scope():
        weight = keras.Variable(2.0, name="weight")
        optimizer = Lookahead(0.1)
    two.run(lambda: optimizer.apply([jnp.float32(1.0)], [weight]))
    np.testing.assert_allclose([float(weight), float(optimizer.slow[0])], [1.95, 0.9 * 2 + 0.1 * 1.95], rtol=1e-6)


def test_it_can_where_the_step_is_cut_in_two():
    strategy = rx.CentralStorageStrategy(["cpu:0", "cpu:1"])
    make = OPTIMIZERS["schedule free"]
    assert_close(trained(strategy, make, False), trained(rx.OneDeviceStrategy("cpu:0"), make, True))


def test_what_build_assigns_may_depend_on_the_step_before_it(two):
    """The first call is the first pass itself: a weight that the step has assigned is copied as it is then."""
    with two.scope():
        weight = rx.Variable(1.0)
    made = []

    def step(x):
        weight.assign_add(1.0)
        if not made:
            made.append(rx.Variable(0.0))
            made[0].assign(weight.value * 10 + rx.get_replica_context().all_reduce("sum", jnp.sum(x)))
        made[0].assign_add(1.0)
        return made[0].value

    total = float(ROWS.sum())
    found = [float(two.local_results(two.run(step, args=(batch_of(two),)))[0]) for _ in range(3)]
    np.testing.assert_allclose(found, [21.0 + total, 22.0 + total, 23.0 + total], rtol=1e-6)


def test_a_step_that_fails_while_it_is_traced_does_not_lose_a_first_value_in_silence(two):
    with two.scope():
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
        optimizer = keras.optimizers.ScheduleFreeAdamW(0.1)
    broken = [True]

    def step(x):
        gradients = rx.grad(lambda: jnp.sum(layer(x) ** 2), layer.trainable_variables)()
        optimizer.apply(gradients, layer.trainable_variables)
        if broken:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        two.run(step, args=(batch_of(two),))
    broken.clear()
    with pytest.raises(ProgramError, match=r"momentum.* has lost its first value"):
        two.run(step, args=(batch_of(two),))
    for momentum, variable in zip(optimizer._momentums, layer.trainable_variables, strict=True):
        momentum.assign(variable)
    two.run(step, args=(batch_of(two),))


class Anchored(keras.layers.Layer):
    """A layer that keeps the weight with which it was built."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1],), initializer="ones", name="kernel")
        self.anchor = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="anchor")
        self.anchor.assign(self.kernel)

    def call(self, x):
        return x * (self.kernel + self.anchor)


def step_with(layer):
    def step(x):
        gradients = rx.grad(lambda: jnp.sum(layer(x) ** 2), layer.trainable_variables)()
        for variable, gradient in zip(layer.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)

    return step


def test_a_layer_whose_build_in_the_loss_assigns_is_refused_until_it_is_built_before(two):
    with two.scope():
        layer, built = Anchored(), Anchored()
        built.build((None, 3))
    for _ in range(2):
        with pytest.raises(ProgramError, match=r"anchor' has lost its first value.*layer\.build"):
            two.run(step_with(layer), args=(batch_of(two),))
    two.run(step_with(built), args=(batch_of(two),))
    np.testing.assert_array_equal(built.anchor.numpy(), np.ones(3))
    assert not np.array_equal(built.kernel.numpy(), np.ones(3))


def test_a_layer_that_assigns_when_it_is_built_outside_of_a_loss_computes_as_on_one_device(two):
    with two.scope():
        layer = Anchored()
    for _ in range(2):
        found = two.gather(two.run(lambda x: layer(x), args=(batch_of(two),)), axis=0)
        np.testing.assert_allclose(found, 2 * ROWS, rtol=1e-6)


def test_a_pass_whose_branching_is_traced_again_is_refused_if_it_gave_a_first_value(two):
    """The search for what differs between replicas throws the first trace of the replica function away."""
    with two.scope():
        largest = rx.Variable(0.0, aggregation="mean")
        layer = Anchored()

    def step(x):
        largest.assign(jax.lax.cond(x[0, 0] > 0, lambda: 1.0, lambda: 2.0))
        return layer(x)

    with pytest.raises(ProgramError, match="has lost its first value"):
        two.run(step, args=(batch_of(two),))


def test_a_function_whose_first_call_differs_is_compiled_twice_and_others_once(two, compilations):
    def count(make):
        with compilations() as compiled:
            trained(two, make, False)
        return sum("step" in message for message in compiled)

    assert count(lambda: keras.optimizers.Adam(0.1)) == 1
    assert count(OPTIMIZERS["schedule free"]) == 2


def test_an_exported_function_is_built_before(tmp_path):
    layer = Anchored()
    with pytest.raises(ProgramError, match=r"anchor.*layer\.build"):
        rx.export(lambda x: layer(x), tmp_path / "f", ROWS)
