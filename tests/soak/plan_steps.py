"""Training steps of many kinds, each of them a function that plays a script: it makes a model and trains."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
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


def fit_accumulated() -> None:
    _fit(_dense, keras.optimizers.Adam(gradient_accumulation_steps=2))


def fit_layer_norm() -> None:
    _fit(lambda: _dense(keras.layers.LayerNormalization(), keras.layers.Dense(256, "gelu")))


def fit_attention() -> None:
    def attends() -> keras.Model:
        layers = keras.layers
        inputs = keras.Input([32, 64])
        x = layers.MultiHeadAttention(4, 16)(inputs, inputs)
        return keras.Model(inputs, layers.Dense(CLASSES)(layers.Flatten()(x)))

    _fit(attends, x=np.ones([ROWS, 32, 64], "float32"))


def fit_table() -> None:
    import keras_rs

    rows = keras_rs.layers.TableConfig("rows", 4096, 32, optimizer=keras.optimizers.Adagrad(0.1), combiner="mean")
    features = {"id": keras_rs.layers.FeatureConfig("id", rows, input_shape=(ROWS, 4), output_shape=(ROWS, 32))}

    def looks_up() -> keras.Model:
        inputs = {"id": keras.Input([4], dtype="int32", name="id")}
        found = rx.keras.DistributedEmbedding(features)(inputs)
        return keras.Model(inputs, keras.layers.Dense(CLASSES)(found["id"]))

    _fit(looks_up, x={"id": np.random.default_rng(0).integers(0, 4096, [ROWS, 4]).astype("int32")})


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


def loop_accumulated() -> None:
    _loop(accumulated=4)


def loop_sgd() -> None:
    strategy = rx.get_strategy()
    w = rx.Variable(jnp.ones([WIDTH, 512]), name="w")

    def step(x: Any) -> Any:
        loss, [gradient] = rx.value_and_grad(lambda: (jnp.tanh(x @ w.value) ** 2).sum() / ROWS, [w])()
        w.assign_sub(1e-2 * gradient)
        return loss

    for x in strategy.distribute_dataset([_rows()[0]]):
        strategy.run(step, (x,))


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
    fit_mixed_precision, fit_accumulated, fit_layer_norm, fit_attention, loop_keras, loop_remat, loop_accumulated,
    loop_sgd, loop_optax,
)  # fmt: skip


def mirrored() -> rx.Strategy:
    return rx.MirroredStrategy()


def fully_sharded() -> rx.Strategy:
    return rx.FullyShardedStrategy()


def layouts() -> rx.Strategy:
    return rx.LayoutStrategy(mesh_shape={"batch": -1, "model": 2}, layout="tensor")


def workers() -> rx.Strategy:
    return rx.MultiWorkerMirroredStrategy()


def tpu() -> rx.Strategy:
    return rx.TPUStrategy(platform=jax.devices()[0].platform)


STRATEGIES = (mirrored, fully_sharded, layouts, workers)


def dtensor() -> None:
    """Two layers over a mesh of 4 x 2 devices, whose hidden units are cut."""
    from replicax.dtensor import UNSHARDED, DVariable, Layout, call_with_layout, create_mesh, pack

    mesh = create_mesh([("batch", 4), ("model", 2)])

    def variable(shape: tuple[int, ...], *sharding: str) -> DVariable:
        layout = Layout(list(sharding), mesh)
        return DVariable(call_with_layout(jnp.ones, layout, shape, jnp.float32), name="w")

    first, second = variable((WIDTH, 512), UNSHARDED, "model"), variable((512, CLASSES), "model", UNSHARDED)
    rows = Layout(["batch", UNSHARDED], mesh)
    count = ROWS // 4
    own = [_rows()[0][each["batch"] * count :][:count] for each in mesh.local_device_locations()]

    @rx.function
    def step(x: Any) -> Any:
        loss = lambda: (jnp.tanh(x @ first.value) @ second.value).sum() / ROWS  # noqa: E731
        value, gradients = rx.value_and_grad(loss, [first, second])()
        for each, gradient in zip((first, second), gradients, strict=True):
            each.assign_sub(1e-3 * gradient)
        return value

    step(pack(own, rows))


def exported() -> None:
    """A step that another process has written for CPU devices and TPUs, on a mesh of 4 x 2 devices."""
    from replicax.dtensor import create_mesh

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/step"
        environ = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
        command = [sys.executable, "-m", "tests.soak.plan_steps", path]
        subprocess.run(command, env=environ, cwd=Path(__file__).parents[2], check=True)
        step = rx.load_export(path, mesh=create_mesh([("batch", 4), ("model", 2)]))
    rx.function(step)(_rows()[0])


def _export(path: str) -> None:
    from replicax.dtensor import UNSHARDED, DVariable, Layout, call_with_layout, create_mesh

    mesh = create_mesh([("batch", 4), ("model", 2)])
    w = DVariable(call_with_layout(jnp.ones, Layout([UNSHARDED, "model"], mesh), (WIDTH, 512), jnp.float32), name="w")

    def step(x: Any) -> Any:
        value, [gradient] = rx.value_and_grad(lambda: (jnp.tanh(x @ w.value) ** 2).sum() / ROWS, [w])()
        w.assign_sub(1e-3 * gradient)
        return value

    rows = Layout(["batch", UNSHARDED], mesh).to_sharding()
    batch = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=rows)
    rx.export(step, path, batch, platforms=["cpu", "tpu"])


#: All pairs of a step and the strategy in whose scope it runs; None for a step that has a mesh of its own. Tables are
#: laid out by the layer, whatever the strategy.
PAIRS: tuple[tuple[Callable[[], None], Callable[[], rx.Strategy] | None], ...] = (
    *((step, make) for step in STEPS for make in STRATEGIES),
    *((step, tpu) for step in (fit_dense, fit_batch_norm, loop_keras, loop_optax)),
    (fit_table, mirrored),
    (dtensor, None),
    (exported, None),
)


def part_of(pairs: Sequence[Any], part: int, parts: int) -> list[Any]:
    """Returns a part of the pairs, which has every strategy and every step if it is large enough."""
    return [pair for i, pair in enumerate(pairs) if (i + i // len(STRATEGIES)) % parts == part - 1]


def name_of(step: Callable[[], None], make: Callable[[], rx.Strategy] | None) -> str:
    """Returns a pair in words."""
    return step.__name__ if make is None else f"{step.__name__} under {make.__name__}"


if __name__ == "__main__":
    _export(*sys.argv[1:])
