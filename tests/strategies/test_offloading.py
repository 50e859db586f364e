"""Optimizer state in the memory of the host: the same numbers, and nothing of it on the devices between steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.contracts.variable_access import array_of
from replicax.runtime import transfer
from replicax.runtime.transfer import HOST_MEMORY, copy_of
from replicax.strategies import offloading

ROWS = 12


def sharded(**options):
    return rx.FullyShardedStrategy(4, min_size=16, **options)


def laid_out(**options):
    return rx.LayoutStrategy(mesh_shape=(2, 2), devices=4, min_size=16, **options)


def data():
    x = np.random.default_rng(0).normal(size=(2 * ROWS + 5, 16)).astype("float32")
    return x, x[:, :8] * 2


def model():
    keras.utils.set_random_seed(3)
    layers = [keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(8)]
    return keras.Sequential(layers)


def by_fit(strategy):
    x, y = data()
    with strategy.scope():
        made = model()
        made.compile(keras.optimizers.AdamW(0.01, use_ema=True), "mse")
    made.fit(x, y, batch_size=ROWS, epochs=1, shuffle=False, verbose=0)
    return made, made.optimizer


def by_loop(strategy):
    x, y = data()
    with strategy.scope():
        made, optimizer = model(), keras.optimizers.Adam(0.01)

    def step(x, y):
        _, gradients = rx.value_and_grad(lambda: jnp.sum((made(x) - y) ** 2) / ROWS, made.trainable_variables)()
        optimizer.apply(gradients, made.trainable_variables)

    for batch in strategy.distribute_dataset([(x[i : i + ROWS], y[i : i + ROWS]) for i in range(0, len(x), ROWS)]):
        strategy.run(step, args=batch)
    return made, optimizer


@pytest.mark.daily(2)
@pytest.mark.parametrize("train", [by_fit, by_loop])
@pytest.mark.parametrize("make", [sharded, laid_out])
def test_numbers_are_the_same_bit_for_bit(train, make):
    expected, of_expected = train(make())
    made, optimizer = train(make(offload_optimizer=True))
    pairs = zip([*made.variables, *optimizer.variables], [*expected.variables, *of_expected.variables], strict=True)
    for variable, wanted in pairs:
        assert np.asarray(array_of(variable)).tobytes() == np.asarray(array_of(wanted)).tobytes(), variable.path
    for variable in optimizer.variables:
        on_host = array_of(variable).sharding.memory_kind == HOST_MEMORY
        is_average = variable.name.endswith("_average")  # Keras gives the parameters their averages after `fit`.
        assert on_host == (np.prod(variable.shape) >= 16 and not is_average), variable.path
    for variable in made.variables:
        assert array_of(variable).sharding.memory_kind != HOST_MEMORY


def test_state_is_made_on_the_host_and_explained():
    strategy = sharded(offload_optimizer=True)
    with strategy.scope():
        made, optimizer = model(), keras.optimizers.SGD(momentum=0.9)
        optimizer.build(made.trainable_variables)
    slot = optimizer.variables[2]
    assert array_of(slot).sharding.memory_kind == HOST_MEMORY
    assert array_of(slot).addressable_shards[0].data.shape == (16, 8)
    line = strategy.explain([slot])
    assert "on the host" in line
    assert " 0 bytes" in line


def test_a_checkpoint_has_the_state(tmp_path):
    strategy = sharded(offload_optimizer=True)
    made, optimizer = by_loop(strategy)
    before = [np.asarray(array_of(variable)) for variable in optimizer.variables]
    path = rx.Checkpoint(model=made, optimizer=optimizer).save(str(tmp_path / "ckpt"))
    for variable in optimizer.variables:
        variable.assign(np.zeros(variable.shape, variable.dtype))
    rx.Checkpoint(model=made, optimizer=optimizer).restore(path)
    for variable, wanted in zip(optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(np.asarray(array_of(variable)), wanted)


def test_a_copy_stays_in_its_memory():
    strategy = sharded(offload_optimizer=True)
    sharding = strategy.placement.sharding(stacked=True).with_memory_kind(HOST_MEMORY)
    array = jax.device_put(np.arange(8.0, dtype="float32"), sharding)
    copy = copy_of(array)
    assert copy.sharding == sharding
    array.delete()
    np.testing.assert_array_equal(copy, np.arange(8.0))


def test_a_platform_without_such_memory_is_refused(monkeypatch):
    monkeypatch.setattr(offloading, "HOST_MEMORY", "nowhere")
    with pytest.raises(rx.errors.DeviceError, match=r"offload_optimizer=True keeps optimizer state .* 'nowhere'"):
        sharded(offload_optimizer=True)
    with pytest.raises(rx.errors.ArgumentError, match="must be True or False"):
        sharded(offload_optimizer="yes")


def test_only_shardings_beside_a_device_have_one_on_it():
    sharding = sharded().placement.sharding(stacked=True)
    assert transfer.beside_device(None) is None
    assert transfer.beside_device(sharding) is None
    assert transfer.beside_device(sharding.with_memory_kind(HOST_MEMORY)) == sharding
