"""Training steps of many kinds, each of them a function that plays a script: it makes a model and trains."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax

import replicax as rx

ROWS, WIDTH, CLASSES = 128, 256, 16


def _rows(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=[rows, WIDTH]).astype("float32"), rng.integers(0, CLASSES, rows).astype("int32")


def _dense(*between: keras.layers.Layer) -> keras.Model:
    return keras.Sequential(
        [keras.Input([WIDTH]), keras.layers.Dense(512, "relu"), *between, keras.layers.Dense(CLASSES)]
    )


def _loss(reduction: str = "sum_over_batch_size") -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def _fit(make: Callable[[], keras.Model], optimizer: Any = "adam", rows: int = ROWS, x: Any = None) -> None:
    model = make()
    model.compile(optimizer, _loss(), metrics=["accuracy"])
    own, y = _rows(rows)
    model.fit(own if x is None else x, y, batch_size=rows, verbose=0)


def fit_dense() -> None:
    _fit(_dense)


def fit_momentum() -> None:
    _fit(_dense, keras.optimizers.SGD(0.1, momentum=0.9))


def fit_dropout() -> None:
    _fit(lambda: _dense(keras.layers.Dropout(0.3)))


def fit_batch_norm() -> None:
    _fit(lambda: _dense(keras.layers.BatchNormalization()))


def fit_uneven() -> None:
    _fit(_dense, rows=ROWS - 3)


def fit_convolution() -> None:
    def conv() -> keras.Model:
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input([16, 16, 1]),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(CLASSES),
            ]
        )

    _fit(conv, x=_rows()[0].reshape(-1, 16, 16, 1))


def fit_embedding() -> None:
    def words() -> keras.Model:
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input([32], dtype="int32"),
                layers.Embedding(1024, 64),
                layers.GlobalAveragePooling1D(),
                layers.Dense(CLASSES),
            ]
        )

    _fit(words, x=np.random.default_rng(0).integers(0, 1024, [ROWS, 32]).astype("int32"))


def fit_mixed_precision() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        _fit(_dense)
    finally:
        keras.config.set_dtype_policy("float32")


def _loop(around: Callable[[Any], Any] = lambda loss: loss, accumulated: int = 0) -> None:
    strategy = rx.get_strategy()
    model, optimizer, loss_of = _dense(), keras.optimizers.Adam(), _loss("none")
    optimizer.build(model.trainable_variables)

    def step(x: Any, y: Any) -> Any:
        def loss(x: Any, y: Any) -> Any:
            return rx.compute_average_loss(loss_of(y, model(x, training=True)), global_batch_size=ROWS)

        gradients_of = rx.value_and_grad(around(loss), model.trainable_variables)
        if accumulated:
            value, grads = rx.accumulate_gradients(gradients_of, accumulated)(x, y)
        else:
            value, grads = gradients_of(x, y)
        optimizer.apply(grads, model.trainable_variables)
        return value

    for batch in strategy.distribute_dataset([_rows()]):
        strategy.run(step, batch)


def loop_keras() -> None:
    _loop()


def loop_remat() -> None:
    _loop(rx.remat)


def loop_optax() -> None:
    strategy = rx.get_strategy()
    optimizer = optax.adamw(1e-3)
    params = strategy.replicate({"in": jnp.ones([WIDTH, 512]), "out": jnp.ones([512, CLASSES])})
    state = strategy.replicate(optimizer.init(params))

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = jnp.tanh(x @ params["in"]) @ params["out"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).sum() / ROWS

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    for x, y in strategy.distribute_dataset([_rows()]):
        params, state, _ = strategy.run(step, (params, state, x, y))


STEPS = (
    fit_dense, fit_momentum, fit_dropout, fit_batch_norm, fit_uneven, fit_convolution, fit_embedding,
    fit_mixed_precision, loop_keras, loop_remat, loop_optax,
)  # fmt: skip


def mirrored() -> rx.Strategy:
    return rx.MirroredStrategy()


def fully_sharded() -> rx.Strategy:
    return rx.FullyShardedStrategy()


def layouts() -> rx.Strategy:
    return rx.LayoutStrategy(mesh_shape={"batch": -1, "model": 2}, layout="tensor")


def workers() -> rx.Strategy:
    return rx.MultiWorkerMirroredStrategy()


STRATEGIES = (mirrored, fully_sharded, layouts, workers)
