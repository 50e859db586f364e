"""LoRA: only the adapters are trained, have an optimizer's state, and travel."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.collectives.hlo import collectives
from tests import hosts_by_name

HOSTS = {
    **{name: host for name, host in hosts_by_name.HOSTS.items() if name != "one"},
    "layout": lambda: rx.LayoutStrategy(mesh_shape={"data": 4, "model": 2}, layout="auto", min_size=8),
}
_rng = np.random.default_rng(0)
IDS, Y = _rng.integers(0, 32, size=(47, 4)), _rng.normal(size=(47, 8)).astype(np.float32)
BATCHES = [(IDS[:24], Y[:24]), (IDS[24:], Y[24:])] * 2


def made(strategy, quantized=False):
    with strategy.scope():
        keras.utils.set_random_seed(1)
        embedding = keras.layers.Embedding(32, 16)
        wide = keras.layers.EinsumDense("btd,dhk->bthk", (None, 4, 16), activation="tanh")
        inner, out = keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(8)
        layers = [embedding, wide, keras.layers.Reshape((4, 64)), inner, keras.layers.Flatten(), out]
        model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
        if quantized:
            model.quantize("int8")
        for layer in (embedding, wide, inner):
            layer.enable_lora(2)
        out.trainable = False
        for index, variable in enumerate(model.trainable_variables):  # The second factor would begin with zeros.
            variable.assign(np.random.default_rng(index).normal(0, 0.3, variable.shape))
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def step_of(strategy, model, optimizer, steps=None):
    def replica_step(x, y):
        def loss_fn(x, y):
            return rx.compute_average_loss(jnp.sum((model(x, training=True) - y) ** 2, -1))

        fn = rx.value_and_grad(loss_fn, model.trainable_variables)
        loss, gradients = (fn if steps is None else rx.accumulate_gradients(fn, steps))(x, y)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return rx.function(lambda batch: strategy.run(replica_step, args=batch))


def looped(strategy, quantized=False, steps=None):
    model, optimizer = made(strategy, quantized)
    step = step_of(strategy, model, optimizer, steps)
    for batch in strategy.distribute_dataset(BATCHES):
        step(batch)
    return [np.asarray(variable.value) for variable in (*model.variables, *optimizer.variables)]


def fitted(strategy, quantized=False):
    model, optimizer = made(strategy, quantized)
    model.compile(optimizer, "mse")
    for batch in BATCHES:
        model.train_on_batch(*batch)
    return [np.asarray(variable.value) for variable in (*model.variables, *optimizer.variables)]


ONE = rx.OneDeviceStrategy("cpu:0")


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "hosts",
    [
        ["three"],
        pytest.param(["sharded"], marks=pytest.mark.nightly),
        pytest.param(list(HOSTS), marks=pytest.mark.nightly),
    ],
    ids=str,
)
@pytest.mark.parametrize("work", [looped, fitted])
@pytest.mark.parametrize("quantized", [False, True])
def test_training_is_that_of_one_device(hosts, work, quantized):
    expected = work(ONE, quantized)
    for host in hosts:
        for a, b in zip(work(HOSTS[host](), quantized), expected, strict=True):
            assert np.linalg.norm(a.astype(float) - b) <= 1e-6 * np.linalg.norm(b.astype(float))


def test_the_optimizer_has_state_for_the_adapters_alone():
    model, optimizer = made(HOSTS["two"]())
    adapters = sum(variable.value.size for variable in model.trainable_variables)
    assert sum(variable.value.size for variable in optimizer.variables) == 2 * adapters + 2
    assert adapters < 0.2 * model.count_params()


@pytest.mark.parametrize("steps", [None, 3])
def test_frozen_weights_have_no_gradient_and_are_not_reduced(steps):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=False)
    model, optimizer = made(strategy)
    (batch,) = strategy.distribute_dataset(BATCHES[:1])
    found = collectives(step_of(strategy, model, optimizer, steps).lower(batch).compile().as_text())
    assert {each.kind for each in found} == {"all-reduce"}
    assert sum(each.num_bytes for each in found) == 4 * sum(v.value.size for v in model.trainable_variables)


def test_fully_sharded_frozen_weights_are_gathered_and_nothing_else():
    strategy = HOSTS["sharded"]()
    model, optimizer = made(strategy)
    (batch,) = strategy.distribute_dataset([(IDS[:24], Y[:24])])
    found = collectives(step_of(strategy, model, optimizer).lower(batch).compile().as_text())
    reduced = sum(each.num_bytes for each in found if each.kind in ("all-reduce", "reduce-scatter"))
    assert reduced == 4 * sum(variable.value.size for variable in model.trainable_variables)
    assert {each.kind for each in found} <= {"all-reduce", "reduce-scatter", "all-gather"}
