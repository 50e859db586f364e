"""Dropout, noise and augmentation in custom loops, the same on any number of replicas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import ProgramError

ROWS = 24
X = np.linspace(-1, 1, ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
IMAGES = np.random.default_rng(0).random((ROWS, 6, 6, 3), np.float32)


@pytest.fixture(scope="module")
def strategies():
    return {n: rx.MirroredStrategy([f"cpu:{i}" for i in range(n)], random_numbers="per_row") for n in (1, 2, 3, 8)}


def noisy_model():
    return keras.Sequential([
        keras.layers.GaussianNoise(0.1, seed=3),
        keras.layers.Dense(16, "relu", kernel_initializer=keras.initializers.GlorotUniform(0)),
        keras.layers.Dropout(0.3, seed=1),
        keras.layers.Reshape((4, 4)),
        keras.layers.SpatialDropout1D(0.4, seed=5),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.3, noise_shape=(1, 16), seed=2),
        keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(1)),
    ])  # fmt: skip


def trained(strategy, steps=5):
    """Trains with dropout in a custom loop; returns the weights and seeds, of an uneven last batch too."""
    with strategy.scope():
        model = noisy_model()
        model.build((None, 3))
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)

    def step(x):
        def loss():
            return rx.compute_average_loss((model(x, training=True)[:, 0] - x.sum(axis=1)) ** 2, global_batch_size=ROWS)

        value, gradients = rx.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    train = rx.function(lambda x: strategy.run(step, args=(x,)))
    for batch in strategy.distribute_dataset([*[X] * steps, X[:14]]):
        train(batch)
    return [np.asarray(variable.value) for variable in model.variables]


@pytest.mark.nightly
def test_training_with_dropout_does_not_depend_on_the_number_of_replicas(strategies):
    expected = trained(rx.OneDeviceStrategy("cpu:0"))
    for number in (3, 8):
        for found, wanted in zip(trained(strategies[number]), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6, err_msg=f"{number} replicas")


def test_so_does_training_on_shards():
    sharded = rx.FullyShardedStrategy([f"cpu:{i}" for i in range(3)], min_size=8, random_numbers="per_row")
    for found, wanted in zip(trained(sharded), trained(rx.OneDeviceStrategy("cpu:0")), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def nnx_trained(strategy, steps=3):
    nnx = pytest.importorskip("flax.nnx")
    with strategy.scope():
        rngs = nnx.Rngs(0, dropout=1)
        model = nnx.Sequential(
            nnx.Linear(3, 16, rngs=rngs), nnx.Dropout(0.4, rngs=rngs), nnx.tanh, nnx.Linear(16, 1, rngs=rngs)
        )
        optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)

    def step(model, optimizer, x):
        def loss_fn(model):
            return rx.compute_average_loss((model(x)[:, 0] - x.sum(axis=1)) ** 2, global_batch_size=ROWS)

        loss, gradients = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, gradients)
        return loss

    for batch in strategy.distribute_dataset([*[X] * steps, X[:14]]):
        strategy.run(step, args=(model, optimizer, batch))
    return [np.asarray(each) for each in jax.tree.leaves(nnx.state(model, nnx.Param))]


@pytest.mark.nightly
def test_so_does_training_with_streams_of_flax(strategies):
    expected = nnx_trained(strategies[1])
    for number in (3, 8):
        for found, wanted in zip(nnx_trained(strategies[number]), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6, err_msg=f"{number} replicas")


LAYERS = {
    "GaussianDropout": {"rate": 0.3},
    "AlphaDropout": {"rate": 0.3},
    "SpatialDropout2D": {"rate": 0.5},
    "RandomFlip": {},
    "RandomBrightness": {"factor": 0.3},
    "RandomContrast": {"factor": 0.5},
    "RandomTranslation": {"height_factor": 0.2, "width_factor": 0.2},
    "RandomRotation": {"factor": 0.2},
    "RandomErasing": {},
}


def of_layer(strategy, name):
    with strategy.scope():
        layer = getattr(keras.layers, name)(**LAYERS[name], seed=5)
    call = rx.function(lambda x: strategy.run(lambda x: layer(x, training=True), args=(x,)))
    [batch] = strategy.distribute_dataset([IMAGES])
    return [np.asarray(strategy.gather(call(batch), axis=0)) for _ in range(2)]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "RandomFlip" else pytest.mark.nightly) for n in LAYERS]
)
def test_layers_change_each_row_as_on_one_device(strategies, name):
    for found, wanted in zip(of_layer(strategies[8], name), of_layer(strategies[1], name), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_layer_that_mixes_rows_is_refused(strategies):
    layer = keras.layers.MixUp(seed=1)
    [batch] = strategies[2].distribute_dataset([IMAGES])
    with pytest.raises(ProgramError, match="permutation of row numbers"):
        strategies[2].run(lambda x: layer(x, training=True), args=(batch,))


def test_seeds_go_on_alike_with_rematerialization(strategies):
    """The seed is drawn from before the block, which draws again in the backward pass."""

    def gradient(strategy):
        with strategy.scope():
            w, seeds = rx.Variable(jnp.ones(3)), keras.random.SeedGenerator(3)

        def step(x):
            def loss_fn():
                @rx.remat
                def block(x):
                    return keras.random.dropout(jnp.tanh(x * w), 0.5, seed=seeds)

                return (block(block(x)) ** 2).sum()

            return rx.grad(loss_fn, [w])()[0]

        [batch] = strategy.distribute_dataset([X])
        found = [strategy.run(step, args=(batch,)) for _ in range(2)]
        return [*map(np.asarray, found), np.asarray(seeds.state.value)]

    for found, wanted in zip(gradient(strategies[3]), gradient(strategies[1]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("steps", [2, 5])
def test_micro_batches_draw_for_their_rows_and_say_what_that_means(strategies, steps, caplog):
    """12 rows a replica in 5 parts are 3, 3, 2, 2 and 2, and 24 are 5, 5, 5, 5 and 4: no part of these."""
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"], random_numbers="per_row")
    with strategy.scope():
        w, seeds = rx.Variable(jnp.ones(3)), keras.random.SeedGenerator(3)

    def step(x):
        def loss_fn(x):
            masked = keras.random.dropout(x * w, 0.5, seed=seeds)
            return masked.sum() / ROWS, masked

        (_, masked), _ = rx.accumulate_gradients(rx.value_and_grad(loss_fn, [w], has_aux=True), steps)(x)
        return masked

    [batch] = strategy.distribute_dataset([np.ones_like(X)])
    first, second = strategy.run(step, args=(batch,)).values
    assert not np.array_equal(first, second)
    assert set(np.unique(first)) == {0.0, 2.0}
    assert "depend on the number of replicas" in caplog.text


def in_scan(x, dropped):
    return rx.lax.scan(lambda h, _: (dropped(h), None), x, None, 3)[0]


def in_branch(x, dropped):
    return rx.lax.cond(True, dropped, lambda x: 2 * x, x)


@pytest.mark.parametrize("around", [in_scan, in_branch])
def test_seed_generators_go_on_alike_in_loops_and_branches(strategies, around):
    def masks(strategy):
        with strategy.scope():
            seeds = keras.random.SeedGenerator(3)

        def step(x):
            return around(jnp.ones_like(x), lambda h: keras.random.dropout(h, 0.3, seed=seeds)) + 0 * x

        [batch] = strategy.distribute_dataset([X])
        found = [strategy.gather(strategy.run(step, args=(batch,)), axis=0) for _ in range(2)]
        return [*map(np.asarray, found), np.asarray(seeds.state.value)]

    for found, wanted in zip(masks(strategies[3]), masks(strategies[1]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
