"""`precision=`: layers compute in 16 bits, all else stays in float32; against Keras's own policies on one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(45, 6)).astype("float32")  # the last batch of 16 does not divide
Y = X[:, :3].argmax(axis=1)


def made() -> keras.Model:
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(3, dtype="float32")])


def trained(model: keras.Model) -> list[np.ndarray]:
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(X, Y, batch_size=16, epochs=1, shuffle=False, verbose=0)
    return model.get_weights()


def by_keras(policy: str) -> list[np.ndarray]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return trained(made())
    finally:
        keras.config.set_dtype_policy(before)


STRATEGIES = {
    "one": lambda name: rx.OneDeviceStrategy("cpu:0", precision=name),
    "mirrored": lambda name: rx.MirroredStrategy(precision=name),
    "sharded": lambda name: rx.FullyShardedStrategy(min_size=8, precision=name),
    "layout": lambda name: rx.LayoutStrategy(mesh_shape=(4, 2), min_size=8, precision=name),
    "central": lambda name: rx.CentralStorageStrategy(["cpu:1", "cpu:2"], "cpu:0", precision=name),
    "workers": lambda name: rx.MultiWorkerMirroredStrategy(precision=name),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize(("name", "policy"), [("bf16", "mixed_bfloat16"), ("fp16", "mixed_float16")])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fit_is_that_of_keras_under_its_policy(strategy: str, name: str, policy: str):
    chosen = STRATEGIES[strategy](name)
    with chosen.scope():
        model = made()
    assert model.layers[0].compute_dtype == policy.removeprefix("mixed_")
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    assert chosen.precision.name == name
    rounding = float(jnp.finfo(policy.removeprefix("mixed_")).eps)
    for ours, keras_s in zip(trained(model), by_keras(policy), strict=True):
        np.testing.assert_allclose(ours, keras_s, rtol=0, atol=0.1 * 3 * rounding)  # rate, steps


def test_the_policy_ends_with_the_scope_and_is_no_others():
    before = keras.config.dtype_policy()
    strategy = rx.MirroredStrategy(2, precision="bf16")
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError
    assert keras.config.dtype_policy() == before
    with rx.MirroredStrategy(2).scope():
        assert keras.layers.Dense(1).compute_dtype == "float32"


def test_gradients_of_a_pytree_are_float32():
    strategy = rx.MirroredStrategy(precision="bf16")

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            low, rows = strategy.cast_to_compute((w, x))
            return rx.compute_average_loss(jnp.sum(rows @ low, axis=1).astype("float32"), global_batch_size=16)

        return jax.grad(loss)(w)

    [batch] = strategy.distribute_dataset([X[:16]])
    gradient = strategy.run(step, args=(strategy.replicate(np.ones((6, 2), np.float32)), batch))
    assert gradient.dtype == "float32"
    expected = X[:16].mean(axis=0)
    np.testing.assert_allclose(gradient, np.stack([expected, expected], axis=1), atol=16 * 2.0**-8 * np.abs(X).max())


@pytest.mark.parametrize("nonsense", ["bfloat16", 16, "", b"bf16", jnp.bfloat16, True])
def test_another_precision_is_refused(nonsense: object):
    with pytest.raises(ArgumentError, match="'fp32', 'bf16', 'fp16', 'fp8'"):
        rx.MirroredStrategy(precision=nonsense)


def test_eight_bits_need_a_device_that_has_them():
    with pytest.raises(ArgumentError, match=r"compute capability 8\.9 .* Use 'bf16'"):
        rx.MirroredStrategy(precision="fp8")


def test_fp32_is_the_default():
    assert rx.MirroredStrategy(precision="fp32").precision is None
    assert rx.MirroredStrategy().cast_to_compute({"w": X})["w"] is X
