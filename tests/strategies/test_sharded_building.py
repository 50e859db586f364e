"""Models built under strategies that shard variables: every variable is in its layout before the first step."""

from __future__ import annotations

import contextlib

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.contracts.variable_access import array_of

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "ema": lambda: keras.optimizers.SGD(0.01, momentum=0.9, use_ema=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(0.01), initial_scale=8.0),
}


def model(dtype="float32", optimizer="adam", seed=None):
    """Returns a compiled model; with no seed of its own each initializer draws one of Python's."""
    keras.utils.set_random_seed(7)
    layers = [
        keras.layers.Embedding(24, 16, embeddings_initializer=keras.initializers.RandomNormal(0.1, seed=seed)),
        keras.layers.LSTM(16),
        keras.layers.Dense(32, activation="relu", dtype=dtype),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(8),
    ]
    made = keras.Sequential(layers)
    made.compile(OPTIMIZERS[optimizer](), "mse", metrics=["mae"])
    return made


def data():
    random = np.random.default_rng(0)
    return random.integers(0, 24, (16, 4)), random.normal(size=(16, 8)).astype("float32")


def built(dtype="float32", optimizer="adam"):
    made = model(dtype, optimizer)
    made.build((None, 4))
    made.optimizer.build(made.trainable_variables)
    return made


def variables_of(made):
    return [*made.variables, *made.optimizer.variables]


def check_layouts(strategy, variables):
    cut = 0
    for variable in variables:
        sharding = strategy.placement.variable_sharding(variable)
        if sharding.shard_shape(tuple(variable.shape)) != tuple(variable.shape):
            assert array_of(variable).sharding == sharding, variable.path
            cut += 1
    assert cut >= 10


def check_equal(variables, expected):
    for variable, wanted in zip(variables, expected, strict=True):
        # A compiled initializer may round once where Keras rounds twice.
        here, there = np.asarray(array_of(variable)), np.asarray(array_of(wanted))
        np.testing.assert_allclose(here, there, rtol=1e-6, atol=3e-8, err_msg=variable.path)


@pytest.mark.daily(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_models_and_optimizers_begin_as_on_one_device_and_in_their_layout(optimizer):
    expected = built("mixed_float16", optimizer)
    strategy = rx.FullyShardedStrategy(min_size=16)
    with strategy.scope():
        made = built("mixed_float16", optimizer)
    check_layouts(strategy, variables_of(made))
    check_equal(variables_of(made), variables_of(expected))


def test_layouts_over_two_axes_too():
    expected = built()
    layout = {"kernel": (None, "model"), "embeddings": ("batch", "model")}
    strategy = rx.LayoutStrategy(mesh_shape={"batch": 4, "model": 2}, layout=layout)
    with strategy.scope():
        made = built()
    check_layouts(strategy, variables_of(made))
    check_equal(variables_of(made), variables_of(expected))


@pytest.mark.daily(1)
@pytest.mark.parametrize("builds", ["fit", "call", "run"])
def test_a_model_that_is_built_by_its_first_call(builds):
    """The values are those of one device, and so is the training that goes on from them."""
    x, y = data()

    def trained(strategy):
        with strategy.scope() if strategy else contextlib.nullcontext():
            made = model(optimizer="ema")
            if builds == "call":
                made(x[:1])
            elif builds == "run":
                call = rx.function(lambda: (strategy.run(lambda: made(x[:1])) if strategy else made(x[:1])) is None)
                call()
        first = [np.asarray(array_of(variable)) for variable in made.variables] if builds != "fit" else None
        made.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        return made, first

    expected, begun = trained(None)
    strategy = rx.FullyShardedStrategy(min_size=16)
    made, first = trained(strategy)
    check_layouts(strategy, variables_of(made))
    if begun is not None:
        for value, wanted in zip(first, begun, strict=True):
            np.testing.assert_array_equal(value, wanted)
    for variable, wanted in zip(made.trainable_variables, expected.trainable_variables, strict=True):
        np.testing.assert_allclose(array_of(variable), array_of(wanted), rtol=2e-5, atol=1e-6)


def test_a_scope_in_a_scope_and_variables_after_it():
    strategy = rx.FullyShardedStrategy(min_size=16)
    with strategy.scope():
        with strategy.scope():
            inner = keras.Variable("ones", shape=(16, 8))
        outer = rx.Variable(lambda: jax.numpy.ones((16, 8)))
    after = keras.Variable("ones", shape=(16, 8))
    assert [len(array_of(each).sharding.device_set) for each in (inner, outer, after)] == [8, 8, 1]


def test_lora_and_quantized_weights_are_cut():
    strategy = rx.FullyShardedStrategy(min_size=16)
    with strategy.scope():
        layer = keras.layers.Dense(64, name="adapted")
        layer.build((None, 32))
        layer.enable_lora(8)
        quantized = keras.layers.Dense(64, name="quantized")
        quantized.build((None, 32))
        quantized.quantize("int8")
    adapters = [variable for variable in layer.variables if "lora" in variable.name]
    assert len(adapters) == 2
    for variable in adapters:
        assert array_of(variable).sharding == strategy.placement.variable_sharding(variable)
    x = np.random.default_rng(0).normal(size=(8, 32)).astype("float32")
    assert np.isfinite(np.asarray(quantized(x))).all()


def test_no_device_holds_more_than_its_parts_and_one_more():
    strategy = rx.FullyShardedStrategy(min_size=16)

    def held():
        buffers = {}
        for array in jax.live_arrays():
            for shard in array.addressable_shards:
                buffers[shard.device, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
        return max(sum(size for (on, _), size in buffers.items() if on == device) for device in jax.devices())

    before = held()
    with strategy.scope():
        kernels = [keras.Variable("he_normal", shape=(512, 512)) for _ in range(4)]
    part = 512 * 512 * 4 // 8
    assert held() - before <= 4 * part + 2**12
    assert all(array_of(kernel).addressable_shards[0].data.nbytes == part for kernel in kernels)
