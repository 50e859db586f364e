"""Layers that compute in 8-bit floats: their scales and maxima are those of the whole batch, as in plain Keras."""

import keras
import numpy as np
import pytest

import replicax as rx

ROWS = 24
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def made():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(4)])
    model.quantize("float8")
    return model


def batches():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, ROWS, 8)).astype(np.float32)
    return list(zip(rows, rng.integers(0, 4, (3, ROWS)), strict=True))


@pytest.fixture(scope="module")
def expected():
    model = made()
    model.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for x, y in batches():
        model.train_on_batch(x, y)
    return [(variable.name, variable.numpy()) for variable in model.variables]


def trained(strategy, aggregation="sum", parts=1):
    with strategy.scope():
        model, optimizer = made(), keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)

    def step(x, y):
        def loss(x, y):
            losses = LOSS(y, model(x, training=True))
            return losses.mean() if aggregation == "mean" else rx.compute_average_loss(losses, global_batch_size=ROWS)

        differentiated = rx.value_and_grad(loss, model.trainable_variables, aggregation=aggregation)
        if parts > 1:
            differentiated = rx.accumulate_gradients(differentiated, parts)
        optimizer.apply(differentiated(x, y)[1], model.trainable_variables)

    for x, y in batches():
        [batch] = strategy.distribute_dataset((x, y), batch_size=ROWS)
        strategy.run(step, args=batch)
    return [variable.numpy() for variable in model.variables]


def check(found, expected, aggregation="sum", parts=1):
    for each, (name, wanted) in zip(found, expected, strict=True):
        if aggregation == "mean":  # The derivatives of a part's own mean are larger, and are rounded elsewhere.
            if name in ("kernel_amax_history", "inputs_amax_history"):
                np.testing.assert_allclose(each, wanted, rtol=0.01, err_msg=name)
        else:  # A number that rounds to the next of the few of 8 bits moves a gradient.
            is_parameter = name in ("kernel", "bias")
            np.testing.assert_allclose(each, wanted, rtol=1e-3, atol=1e-4 if is_parameter else 0, err_msg=name)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(lambda: rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]), {}, id="3"),
        pytest.param(lambda: rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]), {"aggregation": "mean"}, id="mean"),
        pytest.param(lambda: rx.OneDeviceStrategy("cpu:0"), {"parts": 3}, id="micro-batches"),
        pytest.param(rx.MirroredStrategy, {"aggregation": "mean", "parts": 3}, id="8, mean, micro-batches"),
        pytest.param(rx.FullyShardedStrategy, {"parts": 2}, id="fully sharded, uneven micro-batches"),
    ],
)
def test_scales_are_those_of_the_whole_batch(make, options, expected):
    check(trained(make(), **options), expected, **options)


@pytest.mark.nightly
def test_micro_batches_operation_by_operation(expected):
    rx.config.run_eagerly(True)
    try:
        found = trained(rx.MirroredStrategy(["cpu:0", "cpu:1"]), parts=2)
    finally:
        rx.config.run_eagerly(False)
    check(found, expected)
