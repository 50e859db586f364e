"""Variables on one device, computation on several."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import DeviceError
from tests.strategies.places import PLACES


def variable(strategy, value=1.0, **arguments):
    with strategy.scope():
        return rx.Variable(value, **arguments)


def batch_of(strategy, *arrays):
    """One global batch, over the replicas."""
    (batch,) = strategy.distribute_dataset([tuple(np.asarray(array, np.float32) for array in arrays)])
    return batch


def lives_at(variable_, device):
    return variable_._value.devices() == {device} and variable_._value.committed


# Devices.


def test_by_default_all_devices_compute_and_the_first_cpu_has_the_parameters():
    strategy = rx.CentralStorageStrategy()
    assert strategy.num_replicas_in_sync == 8
    assert strategy.devices == tuple(jax.devices())
    assert strategy.parameter_device == jax.devices("cpu")[0]
    assert rx.CentralStorageStrategy([]).devices == strategy.devices


def test_devices_may_be_chosen():
    strategy = rx.CentralStorageStrategy(["cpu:5", jax.devices()[2]], parameter_device="/cpu:7")
    assert [device.id for device in strategy.devices] == [5, 2]
    assert strategy.parameter_device.id == 7
    assert repr(strategy) == "CentralStorageStrategy([cpu:5, cpu:2], parameter_device='cpu:7')"


def test_one_device_has_everything_unless_told_otherwise():
    assert rx.CentralStorageStrategy(["cpu:3"]).parameter_device.id == 3
    assert rx.CentralStorageStrategy(["cpu:3"], "cpu:1").parameter_device.id == 1
    assert rx.CentralStorageStrategy(["cpu:3", "cpu:4"]).parameter_device.id == 0


@pytest.mark.parametrize(
    ("compute", "parameter"),
    [(["cpu:0", "cpu:0"], None), (["cpu:8"], None), (["potato"], None), (None, "cpu:8"), (["cpu:1"], "potato")],
)
def test_bad_devices_are_refused(compute, parameter):
    with pytest.raises(DeviceError):
        rx.CentralStorageStrategy(compute, parameter)


# What lives where.


def model_and_optimizer(strategy, optimizer=lambda: keras.optimizers.Adam(0.1)):
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model, made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1)]), optimizer()
        made.build(model.trainable_variables)
        return model, made


def train_step_of(model, optimizer):
    def train_step(x, y):
        def loss_fn():
            loss = rx.compute_average_loss(jnp.sum((model(x, training=True) - y) ** 2, axis=1))
            return optimizer.scale_loss(loss)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


RNG = np.random.default_rng(0)
BATCHES = [(RNG.normal(size=(n, 6)).astype("float32"), RNG.normal(size=(n, 1)).astype("float32")) for n in (6, 6, 5, 6)]


@pytest.mark.daily(2)
@pytest.mark.parametrize("place", ["among", "beside", "one_beside"])
def test_parameters_and_optimizer_state_live_on_the_parameter_device(place):
    central = rx.CentralStorageStrategy(*PLACES[place])
    # Accumulating gradients puts conditions into the update, and a partial batch is a second program.
    accumulating = lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2)  # noqa: E731
    model, optimizer = model_and_optimizer(central, accumulating)
    total = variable(central, 0.0, synchronization="on_read", aggregation="sum")
    step = train_step_of(model, optimizer)

    def counted(x, y):
        total.assign_add(jnp.float32(x.shape[0]))
        return step(x, y)

    for batch in central.distribute_dataset(BATCHES):
        central.run(counted, args=batch)
    for each in (*model.variables, *optimizer.variables):
        assert lives_at(each, central.parameter_device), each.path
    assert float(total.value) == 23.0
    assert total._value.devices() == set(central.devices) or central.num_replicas_in_sync == 1


def test_no_optimizer_state_is_copied_to_the_compute_devices(beside):
    model, optimizer = model_and_optimizer(beside)
    step = rx.function(lambda x, y: beside.run(train_step_of(model, optimizer), args=(x, y)))
    batch = batch_of(beside, np.ones((2, 6)), np.ones((2, 1)))
    step(*batch)
    lowered = step.lower(*batch)
    shapes = [info.shape for info in jax.tree.leaves(lowered.args_info)]
    weights = [tuple(v.shape) for v in model.trainable_variables]
    counter = ()
    assert sorted(shapes) == sorted([*weights, counter, (2, 1, 6), (2, 1, 1)])


def test_the_replicas_compute_on_their_devices(central):
    own = central.run(lambda: rx.get_replica_context().replica_id_in_sync_group + 0.0)
    components = own.values if isinstance(own, rx.PerReplica) else (own,)
    expected = central.devices if isinstance(own, rx.PerReplica) else (central.parameter_device,)
    assert [component.devices() for component in components] == [{device} for device in expected]


def test_explain_tells_the_place():
    strategy = rx.CentralStorageStrategy(["cpu:0", "cpu:1"], "cpu:5")
    v = variable(strategy, np.ones((3, 2)), name="v")
    seen = variable(strategy, 0.0, synchronization="on_read", aggregation="sum", name="seen")
    assert strategy.explain([v]) == "v  (3, 2)  on cpu:5  24 bytes"
    assert strategy.explain([seen]) == "seen  ()  one for each replica  4 bytes"
    model, _ = model_and_optimizer(strategy)
    assert strategy.explain(model).count("on cpu:5") == 4


def test_the_step_can_be_looked_at(beside):
    v = variable(beside)

    @rx.function
    def step(x):
        beside.run(lambda x: v.assign_sub(rx.grad(lambda: v * x.sum(), v)()) is None, args=(x,))

    lowered = step.lower(*batch_of(beside, np.ones(2)))
    assert "all-reduce" in lowered.compile().as_text()
    assert float(v.value) == 1.0


def test_the_second_step_compiles_nothing(central, compilations):
    """Though Keras makes variables without saying where."""
    with central.scope():
        v, optimizer = keras.Variable(np.ones(3, "float32")), keras.optimizers.SGD(0.1, momentum=0.9)
        free = rx.Variable(0.0)
    steps = rx.Variable(0)  # of no strategy

    def step(x):
        gradient = rx.grad(lambda: jnp.sum(v.value) * x.sum(), v)()
        optimizer.apply_gradients([(gradient, v)])
        free.assign_add(1.0)
        steps.assign_add(1)

    batch = batch_of(central, np.ones(central.num_replicas_in_sync))
    central.run(step, args=batch)
    with compilations() as compiled:
        central.run(step, args=batch)
        central.run(step, args=batch)
    assert compiled == []
    assert int(steps.value) == 3


# Training.


def fitted(strategy, make_optimizer):
    model, optimizer = model_and_optimizer(strategy, make_optimizer)
    step = train_step_of(model, optimizer)
    losses = [
        float(strategy.reduce("sum", strategy.run(step, args=batch), axis=None))
        for batch in strategy.distribute_dataset(BATCHES[:2] * 2)
    ]
    return losses, [np.asarray(v.value) for v in (*model.variables, *optimizer.variables)]


OPTIMIZERS = {
    "nesterov": lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
    "clipvalue": lambda: keras.optimizers.RMSprop(0.01, clipvalue=0.1),
    "clipnorm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "adamw": lambda: keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.01, 10)),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), dynamic_growth_steps=2),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_does_what_it_does_under_mirrored_strategy(mirrored, name):
    ours = fitted(rx.CentralStorageStrategy(["cpu:1", "cpu:2"], "cpu:0"), OPTIMIZERS[name])
    expected = fitted(mirrored(2), OPTIMIZERS[name])
    np.testing.assert_allclose(ours[0], expected[0], rtol=1e-5)
    for a, b in zip(ours[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_learning_rate_may_be_assigned_between_steps(central):
    v = variable(central, np.zeros(3, "float32"))
    with central.scope():
        optimizer = keras.optimizers.SGD(1.0)

    def step():
        optimizer.apply_gradients([(rx.grad(lambda: jnp.sum(v.value), v, aggregation="mean")(), v)])

    for rate in (1.0, 0.5, 0.25):
        optimizer.learning_rate = rate
        central.run(step)
    np.testing.assert_allclose(v.numpy(), np.full(3, -1.75))
    assert lives_at(v, central.parameter_device)


def test_dropout_differs_between_replicas_and_steps(beside):
    with beside.scope():
        dropout = keras.layers.Dropout(0.5, seed=1)
    x = np.ones((2, 64), np.float32)
    masks = [np.asarray(row) for _ in range(2) for row in _rows(beside, lambda x: dropout(x, training=True), x)]
    assert len({mask.tobytes() for mask in masks}) == 4


def _rows(strategy, fn, x):
    return strategy.run(fn, args=batch_of(strategy, x)).values


@pytest.mark.daily(2)
def test_state_in_pytrees_needs_no_variables(central, mirrored):
    def train(strategy):
        params, optimizer = jnp.arange(4.0), optax.adam(0.1)
        state = strategy.replicate((params, optimizer.init(params)))

        def step(state, x):
            params, opt_state = state
            gradient = jax.grad(lambda p: jnp.sum((p * x) ** 2))(params)
            updates, opt_state = optimizer.update(gradient, opt_state)
            return optax.apply_updates(params, updates), opt_state

        for n in (6, 5, 6):
            state = strategy.run(step, args=(state, *batch_of(strategy, np.ones((n, 4)))))
        return state

    ours, expected = train(central), train(mirrored(central.num_replicas_in_sync))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_variables_of_both_kinds_train_together(beside):
    with beside.scope():
        ours, keras_ = rx.Variable(2.0), keras.Variable(3.0)
        optimizer = keras.optimizers.SGD(1.0)

    def step(x):
        gradients = rx.grad(lambda: ours.value * keras_.value * x.sum(), [ours, keras_])()
        optimizer.apply_gradients(zip(gradients, [ours, keras_], strict=True))

    beside.run(step, args=batch_of(beside, [0.25, 0.75]))
    assert (float(ours.value), float(keras_.value)) == (-1.0, 1.0)
    assert all(lives_at(v, beside.parameter_device) for v in (ours, keras_))


def test_a_gradient_penalty_is_part_of_the_loss(beside, mirrored):
    def trained(strategy):
        v = variable(strategy, np.arange(3.0))

        def step(x):
            def penalized():
                inner = rx.grad(lambda: jnp.sum(v.value**3 * x), v, aggregation=None)()
                return jnp.sum(v.value * x) + 0.01 * jnp.sum(inner**2)

            v.assign_sub(0.1 * rx.grad(penalized, v)())

        for batch in strategy.distribute_dataset([np.ones((2, 1), np.float32)] * 3):
            strategy.run(step, args=(batch,))
        return v.numpy()

    np.testing.assert_allclose(trained(beside), trained(mirrored(2)), rtol=1e-6)


def test_a_gradient_may_follow_an_update(beside):
    a, b = variable(beside), variable(beside)

    def step(x):
        a.assign_sub(rx.grad(lambda: a * x.sum(), a)())
        b.assign_sub(rx.grad(lambda: a * b * x.sum(), b)())

    beside.run(step, args=batch_of(beside, [1.0, 2.0]))
    assert (float(a.value), float(b.value)) == (-2.0, 7.0)
