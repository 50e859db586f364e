"""Synchronized batch normalization in custom loops is that of one device, gradients and moving statistics included."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.contract.problems import batches
from tests.hosts_by_name import HOSTS

SIZES = (24, 23, 24, 6, 1)


def made(strategy, layer, **settings):
    with strategy.scope():
        keras.utils.set_random_seed(1)
        dense = keras.layers.Dense(8, use_bias=False)  # Its gradient would be zero, up to rounding.
        layers = [dense, layer(momentum=0.9, **settings), keras.layers.ReLU(), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((64,)), *layers]), keras.optimizers.SGD(0.1)


def trained(strategy, layer=rx.keras.BatchNormalization, sizes=SIZES, **settings):
    model, optimizer = made(strategy, layer, **settings)
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(batch):
        def loss_fn(x, y):
            return rx.compute_average_loss(per_example(y, model(x, training=True)))

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)(*batch)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    losses = []
    for batch in strategy.distribute_dataset(batches(sizes)):
        losses.append(float(strategy.reduce("sum", strategy.run(train_step, args=(batch,)))))
    return np.array(losses), [np.asarray(variable.value) for variable in model.variables]


def assert_same(ours, theirs):
    np.testing.assert_allclose(ours[0], theirs[0], rtol=5e-6)
    for a, b in zip(ours[1], theirs[1], strict=True):
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)


@pytest.fixture(scope="module")
def plain():
    return trained(rx.OneDeviceStrategy("cpu:0"), keras.layers.BatchNormalization)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["three"])
def test_training_is_that_of_one_device(name, plain):
    assert_same(trained(HOSTS[name]()), plain)


@pytest.mark.nightly
@pytest.mark.parametrize("name", HOSTS)
def test_training_is_that_of_one_device_on_any_number_of_devices(name, plain):
    assert_same(trained(HOSTS[name]()), plain)


@pytest.mark.nightly
@pytest.mark.parametrize("name", HOSTS)
def test_renormalization_is_that_of_one_device(name):
    reference = trained(rx.OneDeviceStrategy("cpu:0"), keras.layers.BatchNormalization, renorm=True, sizes=(24, 23))
    assert_same(trained(HOSTS[name](), renorm=True, sizes=(24, 23)), reference)


def test_a_replica_without_a_row_that_counts_takes_part(mirrored):
    """The mask leaves nothing of the first replica's rows."""
    three = mirrored(3)
    x = np.random.default_rng(0).normal(size=(6, 4, 2)).astype(np.float32)
    mask = np.random.default_rng(1).random((6, 4)) < 0.5
    mask[:2] = False
    ours, plain = rx.keras.BatchNormalization(), keras.layers.BatchNormalization()
    with three.scope():
        ours.build(x.shape)
    plain.build(x.shape)
    expected = plain(x, mask=mask, training=True)
    (batch,) = three.distribute_dataset([(x, mask)])
    found = three.run(lambda x, mask: ours(x, mask=mask, training=True), args=batch)
    np.testing.assert_allclose(three.gather(found, axis=0), expected, rtol=1e-5, atol=1e-6)
    for a, b in zip(ours.variables, plain.variables, strict=True):
        np.testing.assert_allclose(a.value, b.value, rtol=1e-6)


def test_gradients_go_through_the_statistics(mirrored):
    three = mirrored(3)
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    with three.scope():
        w = rx.Variable(np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32))
        ours = rx.keras.BatchNormalization()
        ours.build((None, 2))
    plain = keras.layers.BatchNormalization()
    plain.build((None, 2))

    def loss(layer, x):
        return rx.compute_average_loss(jnp.sum(jnp.sin(layer(x @ w.value, training=True)) ** 3, -1), None, 6)

    (batch,) = three.distribute_dataset([x])
    [gradient] = three.run(lambda x: rx.grad(lambda: loss(ours, x), [w])(), args=(batch,))
    [expected] = rx.grad(lambda: loss(plain, x), [w])()
    np.testing.assert_allclose(gradient, expected, rtol=2e-5, atol=1e-7)


def test_fit_sees_the_global_batch_in_any_case(mirrored):
    found = []
    for strategy, layer in ((mirrored(3), rx.keras.BatchNormalization), (None, keras.layers.BatchNormalization)):
        model, optimizer = made(strategy or rx.OneDeviceStrategy("cpu:0"), layer)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        ((x, y),) = batches((23,))
        model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        found.append([np.asarray(variable.value) for variable in model.variables])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_model_made_elsewhere_is_converted(mirrored, plain):
    class Own(keras.layers.BatchNormalization):
        pass

    three = mirrored(3)
    with three.scope():
        inner = keras.Sequential([Own(), keras.layers.BatchNormalization(name="norm")])
        model = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(2)])
    before = model.get_weights()
    assert rx.keras.synchronize_batch_normalization(model) is model
    first, second = inner.layers
    assert first.synchronized
    assert isinstance(first, Own)
    assert type(second) is rx.keras.BatchNormalization
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    (batch,) = three.distribute_dataset([x])
    three.run(lambda x: second(x, training=True), args=(batch,))
    np.testing.assert_allclose(second.moving_mean.value, 0.01 * x.mean(0), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(second.moving_variance.value, 0.99 + 0.01 * x.var(0), rtol=1e-6)
    rx.keras.synchronize_batch_normalization(model, False)
    assert not first.synchronized


def test_what_has_no_such_layer_is_refused():
    with pytest.raises(rx.errors.ArgumentError, match="nothing to synchronize"):
        rx.keras.synchronize_batch_normalization(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(rx.errors.ArgumentError, match="model or layer"):
        rx.keras.synchronize_batch_normalization("model")
    with pytest.raises(rx.errors.ArgumentError, match="synchronized"):
        rx.keras.BatchNormalization(synchronized="yes")


def test_a_saved_model_is_loaded_with_it(tmp_path):
    model, _ = made(rx.OneDeviceStrategy("cpu:0"), rx.keras.BatchNormalization)
    model.save(tmp_path / "model.keras")
    layer = keras.models.load_model(tmp_path / "model.keras").layers[1]
    assert type(layer) is rx.keras.BatchNormalization
    assert layer.synchronized
