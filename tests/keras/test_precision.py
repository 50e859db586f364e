"""Mixed precision, loss scaling and what optimizers do besides, in custom loops and `fit`, equal one device."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.collectives.hlo import collectives
from tests.hosts_by_name import HOSTS_AND_LAYOUT as HOSTS

_rng = np.random.default_rng(0)
X, Y = _rng.normal(size=(47, 6)).astype(np.float32), _rng.normal(size=(47, 8)).astype(np.float32)
BATCHES = [(X[:24], Y[:24]), (X[24:], Y[24:])] * 3


def made(strategy, optimizer, policy=None):
    with strategy.scope():
        keras.utils.set_random_seed(1)
        hidden = keras.layers.Dense(16, activation="tanh", dtype=policy)
        model = keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(8, dtype=policy)])
        return model, optimizer()


def looped(strategy, optimizer, policy=None, batches=BATCHES, steps=None):
    model, optimizer = made(strategy, optimizer, policy)

    def replica_step(x, y):
        def loss_fn(x, y):
            each = jnp.sum((model(x, training=True).astype(jnp.float32) - y) ** 2, -1)
            loss = rx.compute_average_loss(each)
            return optimizer.scale_loss(loss), loss

        fn = rx.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)
        fn = fn if steps is None else rx.accumulate_gradients(fn, steps)
        (_, loss), gradients = fn(x, y)
        optimizer.apply(gradients, model.trainable_variables)
        return jnp.sum(loss)

    losses = [
        float(strategy.reduce("sum", strategy.run(replica_step, args=batch)))
        for batch in strategy.distribute_dataset(batches)
    ]
    return losses, [np.asarray(v.value) for v in (*model.variables, *optimizer.variables)], model, optimizer


def fitted(strategy, optimizer, policy=None, batches=BATCHES):
    model, optimizer = made(strategy, optimizer, policy)
    model.compile(optimizer, "mse")
    losses = [model.train_on_batch(*batch) for batch in batches]
    return losses, [np.asarray(v.value) for v in (*model.variables, *optimizer.variables)], model, optimizer


def assert_same(ours, theirs, tolerance=1e-6):
    np.testing.assert_allclose(ours[0], theirs[0], rtol=5 * tolerance)
    for a, b, variable in zip(ours[1], theirs[1], (*ours[2].variables, *ours[3].variables), strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b), variable.path


OPTIMIZERS = {
    "clipnorm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipvalue=0.01),
    "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2),
    "decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01, global_clipnorm=0.1), initial_scale=8.0, dynamic_growth_steps=2
    ),
    "scale and accumulation": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05, gradient_accumulation_steps=3), initial_scale=8.0, dynamic_growth_steps=4
    ),
    "lion": lambda: keras.optimizers.Lion(0.001, weight_decay=0.1, use_ema=True),
    "muon": lambda: keras.optimizers.Muon(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
}
ONE = rx.OneDeviceStrategy("cpu:0")


@pytest.mark.daily(2)
@pytest.mark.parametrize("work", [looped, fitted])
@pytest.mark.parametrize("name", ["ema", "scale and accumulation"])
def test_optimizers_do_the_same_on_shards(name, work):
    assert_same(work(HOSTS["sharded"](), OPTIMIZERS[name]), work(ONE, OPTIMIZERS[name]))


@pytest.mark.nightly
@pytest.mark.parametrize("work", [looped, fitted])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_do_the_same_everywhere(name, work):
    expected = work(ONE, OPTIMIZERS[name])
    for host in HOSTS.values():
        assert_same(work(host(), OPTIMIZERS[name]), expected)


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_do_the_same_with_micro_batches(name):
    expected = looped(ONE, OPTIMIZERS[name])
    for host in HOSTS.values():
        assert_same(looped(host(), OPTIMIZERS[name], steps=3), expected)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("policy", "hosts"),
    [
        ("mixed_bfloat16", ["three"]),
        ("mixed_float16", ["sharded"]),
        pytest.param("mixed_bfloat16", list(HOSTS), marks=pytest.mark.nightly),
        pytest.param("mixed_float16", list(HOSTS), marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("work", [looped, fitted])
def test_mixed_precision_keeps_weights_and_gradients_in_float32(work, policy, hosts):
    """Each replica computes with fewer bits; sums over rows round in another order, and no more than that."""
    optimizer = OPTIMIZERS["scale"] if policy == "mixed_float16" else OPTIMIZERS["global_clipnorm"]
    expected = work(ONE, optimizer, policy)
    for host in hosts:
        found = work(HOSTS[host](), optimizer, policy)
        assert {variable.dtype for variable in found[2].variables} == {"float32"}
        assert_same(found, expected, 2e-2 if policy == "mixed_bfloat16" else 4e-3)


@pytest.mark.parametrize("steps", [None, 4])
def test_gradients_travel_in_the_dtype_of_their_variables(mirrored, steps):
    two = mirrored(2)
    model, _ = made(two, keras.optimizers.SGD, "mixed_bfloat16")

    @rx.function
    def step(x):
        def replica(x):
            fn = rx.grad(lambda x: rx.compute_average_loss(model(x).astype(jnp.float32)), model.trainable_variables)
            return (fn if steps is None else rx.accumulate_gradients(fn, steps))(x)

        return two.run(replica, args=(x,))

    (batch,) = two.distribute_dataset([X[:24]])
    text = step.lower(batch).compile().as_text()
    assert sum(each.num_bytes for each in collectives(text)) == 4 * model.count_params()


@pytest.mark.daily(1)
@pytest.mark.parametrize("work", [looped, fitted])
@pytest.mark.parametrize("name", ["three", pytest.param("sharded", marks=pytest.mark.nightly)])
def test_a_gradient_that_is_not_finite_on_one_replica_skips_the_step_on_all(name, work):
    def overflow(strategy, steps=None):
        def scaled():
            inner = keras.optimizers.Adam(0.01)
            return keras.optimizers.LossScaleOptimizer(inner, initial_scale=16.0, dynamic_growth_steps=2)

        bad = Y[:24].copy()
        bad[-1] = np.inf
        batches = [BATCHES[0], (X[:24], bad), *BATCHES[:3]]
        kwargs = {} if steps is None else {"steps": steps}
        _, state, *rest = work(strategy, scaled, None, batches, **kwargs)
        return [0.0], state, *rest

    expected = overflow(ONE)
    optimizer = expected[3]
    assert float(optimizer.dynamic_scale.value) == 16.0  # halved once, doubled once after two good steps
    assert int(optimizer.iterations.value) == 4
    assert_same(overflow(HOSTS[name]()), expected)
    if work is looped:
        assert_same(overflow(HOSTS[name](), steps=3), expected)
