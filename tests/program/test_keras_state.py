from __future__ import annotations

import threading

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError, ReplicaDivergenceError, StrategyMismatchError, VariableError

ROWS = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


@pytest.fixture
def x(two, per_replica):
    return per_replica(two, ROWS[:2], ROWS[2:])


def built(strategy, layer, shape=(None, 3)):
    """Makes and builds a layer, or a list of layers, in the strategy's scope."""
    with strategy.scope():
        made = layer()
        made.build(shape)
    return made


def training_step(model, optimizer, loss_of=lambda y: jnp.sum(y**2) / len(ROWS)):
    def step(x):
        loss, gradients = rx.value_and_grad(lambda: loss_of(model(x, training=True)), model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def mlp():
    return keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])


def on_one_device(model, make_optimizer, steps):
    """The weights after training a copy of `model` on all rows at once."""
    copied = keras.models.clone_model(model)
    copied.build((None, 3))
    copied.set_weights(model.get_weights())
    step = rx.function(training_step(copied, make_optimizer()))
    for _ in range(steps):
        step(ROWS)
    return copied.get_weights()


# Training.


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda: keras.optimizers.Adam(0.1),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5),
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
        lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    ],
    ids=["adam", "clipping", "accumulation", "ema", "schedule"],
)
def test_any_keras_optimizer_trains_as_on_one_device(two, x, make_optimizer):
    model = built(two, mlp)
    with two.scope():
        optimizer = make_optimizer()
    expected = on_one_device(model, make_optimizer, steps=3)
    step = training_step(model, optimizer)
    for _ in range(3):
        two.run(step, args=(x,))
    for weight, reference in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(weight, reference, rtol=1e-5, atol=1e-6)


OPTIMIZERS = {
    cls.__name__: cls
    for cls in vars(keras.optimizers).values()
    if isinstance(cls, type) and issubclass(cls, keras.optimizers.Optimizer)
}
del OPTIMIZERS["Optimizer"], OPTIMIZERS["LossScaleOptimizer"], OPTIMIZERS["MultiOptimizer"]  # They take others.
SETTINGS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=1),
    "accumulation": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "clipping": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.5),
    "several": lambda: keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.1))),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
}


@pytest.mark.daily(5)
@pytest.mark.parametrize("make_optimizer", [*OPTIMIZERS.values(), *SETTINGS.values()], ids=[*OPTIMIZERS, *SETTINGS])
def test_no_optimizer_takes_gradients_that_differ_between_replicas(two, x, make_optimizer):
    model = built(two, lambda: keras.layers.Dense(2))
    with two.scope():
        optimizer = make_optimizer()
        optimizer.build(model.trainable_variables)
    before = [variable.numpy() for variable in [*model.variables, *optimizer.variables]]

    def step(x):
        variables = model.trainable_variables
        gradients = rx.grad(lambda: jnp.sum(model(x) ** 2), variables, aggregation=None)()
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    with pytest.raises(ReplicaDivergenceError):
        two.run(step, args=(x,))
    for variable, value in zip([*model.variables, *optimizer.variables], before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_state_that_no_layer_keeps_is_not_averaged(two, x):
    with two.scope():
        state = keras.Variable(0.0, trainable=False, name="state")
    with pytest.raises(ReplicaDivergenceError, match="state"):
        two.run(lambda x: state.assign(jnp.mean(x)), args=(x,))


def test_a_model_and_its_optimizer_may_be_built_by_the_first_step(two, x):
    keras.utils.set_random_seed(0)  # some first weights are too good to get better in a few steps
    with two.scope():
        model, optimizer = mlp(), keras.optimizers.Adam(0.1)
    step = training_step(model, optimizer)
    assert model.trainable_variables == []
    losses = [float(two.reduce("sum", two.run(step, args=(x,)), axis=None)) for _ in range(5)]
    assert len(model.trainable_variables) == 4
    assert int(optimizer.iterations.value) == 5
    assert losses[-1] < losses[0]


def test_the_second_step_compiles_nothing(two, x, compilations):
    with two.scope():
        model, optimizer = mlp(), keras.optimizers.Adam(0.1)
    step = training_step(model, optimizer)
    two.run(step, args=(x,))
    with compilations() as compiled:
        two.run(step, args=(x,))
        two.run(step, args=(x,))
    assert compiled == []


def test_a_function_that_makes_layers_each_time_is_refused(two, x):
    def step(x):
        return keras.layers.Dense(1)(x)

    with pytest.raises(ProgramError, match="once"):
        two.run(step, args=(x,))


def test_all_copies_of_the_weights_stay_equal(two, x):
    model = built(two, mlp)
    with two.scope():
        optimizer = keras.optimizers.Adam(0.1)
    two.run(training_step(model, optimizer), args=(x,))
    for variable in (*model.variables, *optimizer.variables):
        copies = [np.asarray(shard.data) for shard in variable.value.addressable_shards]
        assert len(copies) == 2
        np.testing.assert_array_equal(copies[0], copies[1])


def test_a_trained_model_is_an_ordinary_keras_model_outside(two, x):
    model = built(two, mlp)
    with two.scope():
        optimizer = keras.optimizers.Adam(0.1)
    two.run(training_step(model, optimizer), args=(x,))
    inside = two.gather(two.run(model, args=(x,)), axis=0)
    np.testing.assert_allclose(model(ROWS), inside, rtol=1e-5, atol=1e-6)
    before = model.get_weights()
    two.run(training_step(model, optimizer), args=(x,))
    assert not np.array_equal(before[0], model.get_weights()[0])


def test_weights_read_before_a_step_keep_their_values(two, x):
    model = built(two, mlp)
    with two.scope():
        optimizer = keras.optimizers.SGD(0.1)
    step = training_step(model, optimizer)
    array, copied = model.weights[0].value, model.weights[0].numpy().copy()
    two.run(step, args=(x,))
    two.run(step, args=(x,))
    np.testing.assert_array_equal(array, copied)
    assert not np.array_equal(model.weights[0].numpy(), copied)


def test_weights_assigned_from_each_other_train_apart(two, x):
    a, b = built(two, mlp), built(two, mlp)
    for left, right in zip(a.weights, b.weights, strict=True):
        left.assign(right)
    with two.scope():
        optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.2)]
    steps = [training_step(model, optimizer) for model, optimizer in zip((a, b), optimizers, strict=True)]
    for _ in range(2):
        for step in steps:
            two.run(step, args=(x,))
    assert not np.array_equal(a.get_weights()[0], b.get_weights()[0])


def test_assigning_a_weight_from_one_replicas_data_is_refused_with_its_path(two, x):
    layer = built(two, lambda: keras.layers.Dense(1, name="head"))
    with pytest.raises(ReplicaDivergenceError) as caught:
        two.run(lambda x: layer.bias.assign(x[0, :1]), args=(x,))
    assert caught.value.variable == "head/bias"


# BatchNorm.


def test_batch_norm_statistics_are_the_mean_over_replicas(two, x):
    layer = built(two, lambda: keras.layers.BatchNormalization(momentum=0.5))
    two.run(lambda x: layer(x, training=True), args=(x,))
    halves = [ROWS[:2], ROWS[2:]]
    mean = np.mean([0.5 * half.mean(0) for half in halves], axis=0)
    variance = np.mean([0.5 + 0.5 * half.var(0) for half in halves], axis=0)
    np.testing.assert_allclose(layer.moving_mean.numpy(), mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.moving_variance.numpy(), variance, rtol=1e-5)


def test_batch_norm_normalizes_each_replicas_own_rows(two, x):
    layer = built(two, lambda: keras.layers.BatchNormalization(epsilon=1e-6))
    result = two.run(lambda x: layer(x, training=True), args=(x,))
    for component, rows in zip(result.values, (ROWS[:2], ROWS[2:]), strict=True):
        np.testing.assert_allclose(component, (rows - rows.mean(0)) / rows.std(0), rtol=1e-2, atol=1e-3)


# Random numbers.


def test_dropout_masks_differ_between_replicas_and_steps_and_the_seed_advances_once_a_step(two, per_replica):
    layer = built(two, lambda: keras.layers.Dropout(0.5, seed=3))
    ones = np.ones((2, 16), "float32")
    plain = keras.layers.Dropout(0.5, seed=3)
    steps = [two.run(lambda x: layer(x, training=True), args=(per_replica(two, ones, ones),)) for _ in range(2)]
    for result in steps:
        first, second = result.values
        np.testing.assert_array_equal(first, plain(ones, training=True))  # replica 0 has plain Keras's numbers
        assert not np.array_equal(first, second)
    assert not np.array_equal(steps[0].values[1], steps[1].values[1])
    np.testing.assert_array_equal(layer.seed_generator.state.value, plain.seed_generator.state.value)


@pytest.mark.parametrize("make", [lambda mirrored: mirrored(1), lambda mirrored: rx.OneDeviceStrategy("cpu:0")])
def test_one_replica_has_the_random_numbers_of_plain_keras(mirrored, make):
    strategy = make(mirrored)
    layer = built(strategy, lambda: keras.layers.Dropout(0.5, seed=3))
    plain = keras.layers.Dropout(0.5, seed=3)
    ones = np.ones((2, 16), "float32")
    for _ in range(2):
        result = strategy.run(lambda x: layer(x, training=True), args=(ones,))
        np.testing.assert_array_equal(result, plain(ones, training=True))


def test_two_draws_in_one_step_differ_on_every_replica(two):
    with two.scope():
        seeds = keras.random.SeedGenerator(5)
    draws = two.run(lambda: [keras.random.uniform((4,), seed=seeds) for _ in range(2)])
    numbers = np.stack([component for draw in draws for component in draw.values])
    assert len(np.unique(numbers.round(6))) == 16
    assert seeds.state.numpy()[1] == 2


# Whose the variables are.


@pytest.mark.parametrize(("dtype", "aggregation"), [("bool", "sum"), ("bool", "mean"), ("int32", "mean")])
@pytest.mark.parametrize("synchronization", ["auto", "on_read"])
def test_a_combined_value_never_changes_a_variables_dtype(two, x, dtype, aggregation, synchronization):
    with two.scope():
        v = keras.Variable(
            np.zeros((), dtype), dtype=dtype, trainable=False, aggregation=aggregation, synchronization=synchronization
        )
    with pytest.raises(VariableError, match=f"a {aggregation} of {dtype} values"):
        two.run(lambda x: v.assign(x[0, 0] > 0), args=(x,))
    assert v.value.dtype == dtype


def test_layers_of_another_strategy_are_refused(mirrored, two):
    layer = built(two, lambda: keras.layers.Dense(1, name="head"))
    other = mirrored(3)
    with pytest.raises(StrategyMismatchError, match=r"'head/kernel'.*cpu:0, cpu:1\].*cpu:2"):
        other.run(lambda x: layer(x), args=(ROWS,))
    with pytest.raises(StrategyMismatchError), other.scope():
        rx.function(lambda: layer.kernel.assign(layer.kernel * 2))()


def test_layers_made_outside_of_any_scope_run_under_any_strategy(mirrored, two, x):
    layer = keras.layers.Dense(1)
    layer.build((None, 3))
    expected = np.asarray(layer(ROWS))
    np.testing.assert_allclose(two.gather(two.run(layer, args=(x,))), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mirrored(3).run(layer, args=(ROWS,)), expected, rtol=1e-5, atol=1e-6)


def test_a_scope_leaves_no_keras_distribution_behind(two):
    assert keras.distribution.distribution() is None
    with two.scope(), two.scope():
        assert keras.distribution.distribution() is not None
    assert keras.distribution.distribution() is None


def test_a_scope_in_one_thread_does_not_own_what_another_makes(two):
    made = []
    with two.scope():
        thread = threading.Thread(target=lambda: made.append(keras.Variable(1.0)))
        thread.start()
        thread.join()
    assert float(rx.OneDeviceStrategy("cpu:5").run(lambda: made[0].value)) == 1.0


# Eager execution.


@pytest.mark.nightly
def test_run_eagerly_trains_a_keras_model_alike(two, x, eagerly):
    model = built(two, lambda: keras.Sequential([keras.layers.Dense(2), keras.layers.BatchNormalization()]))
    with two.scope():
        optimizer = keras.optimizers.SGD(0.1)
        seen = keras.metrics.Sum()
    start = model.get_weights()

    def step(x):
        seen.update_state(x)
        return training_step(model, optimizer, lambda y: jnp.sum(y * jnp.arange(1.0, 3.0)))(x)

    two.run(step, args=(x,))
    after = model.get_weights()
    rx.config.run_eagerly(False)
    model.set_weights(start)
    two.run(step, args=(x,))
    for eager, compiled in zip(after, model.get_weights(), strict=True):
        np.testing.assert_allclose(eager, compiled, rtol=1e-5, atol=1e-6)
    assert float(seen.result()) == pytest.approx(2 * ROWS.sum(), rel=1e-5)
