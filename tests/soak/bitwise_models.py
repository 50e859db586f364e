"""Trainings whose bits `bitwise.py` compares: `python tests/soak/bitwise_models.py NAME ...` prints a digest of each.

Each is a few steps of a small model: what matters is which operations it is made of.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax

import replicax as rx

ROWS, BATCHES, CLASSES, STEPS, WIDTH = 32, 3, 4, 8, 12
layers = keras.layers


def strategy_of(kind: str = "mirrored", **arguments: Any) -> Any:
    """Returns the strategy of a training, on all devices that there are."""
    if kind == "sharded":
        return rx.FullyShardedStrategy(numbers="bitwise", min_size=8, **arguments)
    if "JAX_PROCESS_ID" in os.environ:
        return rx.MultiWorkerMirroredStrategy(numbers="bitwise", **arguments)
    return rx.MirroredStrategy(numbers="bitwise", **arguments)


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


ALL_ROWS = ROWS * BATCHES
LABELS = np.random.default_rng(1).integers(0, CLASSES, ALL_ROWS)
ROWS_OF = {
    "numbers": _numbers(ALL_ROWS, WIDTH),
    "images": _numbers(ALL_ROWS, 8, 8, 3),
    "sequences": _numbers(ALL_ROWS, STEPS, WIDTH),
    "words": np.random.default_rng(2).integers(0, 20, (ALL_ROWS, STEPS)),
}


def _bits(values: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for value in values:
        found.update(np.asarray(value).tobytes())
    return found.hexdigest()[:16]


def fitted(
    inputs: str,
    *parts: Callable[[], Any],
    optimizer: Callable[[], Any] = lambda: keras.optimizers.Adam(0.01),
    kind: str = "mirrored",
    rows: int = ROWS,
    weights: np.ndarray | None = None,
    metrics: tuple[str, ...] = ("accuracy",),
    **arguments: Any,
) -> str:
    """Trains a sequential model by `fit`."""
    strategy, x = strategy_of(kind, **arguments), ROWS_OF[inputs]
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input(x.shape[1:], dtype=x.dtype), *(make() for make in parts)])
        model.compile(optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=list(metrics))
    history = model.fit(x, LABELS, batch_size=rows, sample_weight=weights, verbose=0)
    variables = [*model.variables, *model.optimizer.variables]
    values = [each.numpy() for each in variables]
    return _bits([*values, *history.history.values()])


def _transformer() -> Any:
    inputs = keras.Input((STEPS, WIDTH))
    x = layers.LayerNormalization()(inputs)
    x = inputs + layers.MultiHeadAttention(2, 6, dropout=0.1)(x, x)
    x = x + layers.Dense(WIDTH)(layers.Dense(24, "gelu")(layers.LayerNormalization()(x)))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))


def looped(
    loss: Callable[[dict[str, Any], Any, Any, Any], Any],
    inputs: str = "numbers",
    steps: int = 0,
    update: str = "adam",
) -> str:
    """Trains variables in a loop of one's own, with `rx.value_and_grad`."""
    strategy = strategy_of()
    with strategy.scope():
        shapes = {"w": (WIDTH, 16), "v": (16, CLASSES), "table": (20, WIDTH)}
        variables = {name: rx.Variable(0.3 * _numbers(*shape)) for name, shape in shapes.items()}
        squares = {name: rx.Variable(np.zeros(shape, np.float32)) for name, shape in shapes.items()}
        average = rx.Variable(np.zeros(shapes["w"], np.float32))
        total = rx.Variable(0.0)

    def of_batch(x: Any, labels: Any, key: Any) -> Any:
        return loss({name: variable.value for name, variable in variables.items()}, x, labels, key)

    def step(batch: Any, key: Any) -> Any:
        differentiated = rx.value_and_grad(of_batch, variables)
        if steps:
            differentiated = rx.accumulate_gradients(differentiated, steps)
        value, gradients = differentiated(*batch, key)
        for name, gradient in gradients.items():
            if gradient is not None:
                squares[name].assign(0.9 * squares[name] + 0.1 * gradient**2)
                variables[name].assign_sub(0.01 * gradient / (jnp.sqrt(squares[name].value) + 1e-6))
        average.assign(0.99 * average + 0.01 * variables["w"])
        total.assign_add(value)
        return value

    for i, batch in enumerate(strategy.distribute_dataset(_batches(inputs))):
        strategy.run(step, (batch, jax.random.key(i)))
    everything = [*variables.values(), *squares.values(), average, total]
    return _bits(each.numpy() for each in everything)


def _batches(inputs: str) -> list[tuple[np.ndarray, np.ndarray]]:
    rows = [slice(i * ROWS, (i + 1) * ROWS) for i in range(BATCHES)]
    return [(ROWS_OF[inputs][each], LABELS[each]) for each in rows]


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(labels, CLASSES)) / ROWS


def _dense(v: dict[str, Any], x: Any, labels: Any, key: Any) -> Any:
    return _cross_entropy(jnp.tanh(x @ v["w"]) @ v["v"], labels)


def _negatives(v: dict[str, Any], x: Any, labels: Any, key: Any) -> Any:
    left, right = jnp.tanh(x @ v["w"]), jnp.sin(x @ v["w"])
    return -jnp.sum(jnp.diag(jax.nn.log_softmax(left @ right.T))) / ROWS


def _bags(v: dict[str, Any], x: Any, labels: Any, key: Any) -> Any:
    return _cross_entropy(jnp.tanh(v["table"][x].mean(1) @ v["w"]) @ v["v"], labels)


def _dropped(v: dict[str, Any], x: Any, labels: Any, key: Any) -> Any:
    hidden = jnp.tanh(x @ v["w"])
    return _cross_entropy(hidden * jax.random.bernoulli(key, 0.7, hidden.shape) @ v["v"], labels)


def _masked(v: dict[str, Any], x: Any, labels: Any, key: Any) -> Any:
    weights = (labels > 0).astype(jnp.float32)
    losses = -jnp.sum(jax.nn.log_softmax(jnp.tanh(x @ v["w"]) @ v["v"]) * jax.nn.one_hot(labels, CLASSES), -1)
    return jnp.sum(losses * weights) / jnp.sum(weights)


def _with_optax() -> str:
    strategy = strategy_of()
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.01))
    parameters = {"w": 0.3 * _numbers(WIDTH, 16), "v": 0.3 * _numbers(16, CLASSES)}
    state = strategy.replicate((parameters, optimizer.init(parameters)))

    def step(state: Any, batch: Any) -> Any:
        parameters, moments = state
        loss = lambda p: _dense(p, *batch, None)  # noqa: E731
        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), value

    for batch in strategy.distribute_dataset(_batches("numbers")):
        state, _ = strategy.run(step, (state, batch))
    return _bits(np.asarray(leaf) for leaf in jax.tree.leaves(state))


def _out() -> Any:
    return layers.Dense(CLASSES)


def _relu() -> Any:
    return layers.Dense(16, "relu")


MODELS: dict[str, Callable[[], str]] = {
    "dense": lambda: looped(_dense),
    "dense_fit": lambda: fitted("numbers", _relu, _out),
    "conv": lambda: fitted(
        "images", lambda: layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D, layers.Flatten, _out
    ),
    "depthwise": lambda: fitted(
        "images", lambda: layers.SeparableConv2D(8, 3), lambda: layers.AveragePooling2D(2), layers.Flatten, _out
    ),
    "lstm": lambda: fitted("sequences", lambda: layers.LSTM(8), _out),
    "gru": lambda: fitted("sequences", lambda: layers.GRU(8, return_sequences=True), layers.GlobalMaxPooling1D, _out),
    "masked_lstm": lambda: fitted(
        "words", lambda: layers.Embedding(20, WIDTH, mask_zero=True), lambda: layers.LSTM(8), _out
    ),
    "transformer": lambda: fitted("sequences", _transformer),
    "embedding": lambda: fitted("words", lambda: layers.Embedding(20, WIDTH), layers.Flatten, _out),
    "bags": lambda: looped(_bags, "words"),
    "dropout": lambda: fitted("numbers", _relu, lambda: layers.Dropout(0.3), _out),
    "dropout_loop": lambda: looped(_dropped),
    "batch_norm": lambda: fitted("numbers", _relu, layers.BatchNormalization, _out),
    "moving_average": lambda: fitted(
        "numbers", _relu, _out, optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True)
    ),
    "accumulation": lambda: looped(_dense, steps=2),
    "mixed_precision": lambda: fitted("numbers", _relu, lambda: layers.LayerNormalization(), _out, precision="bf16"),
    "optax": _with_optax,
    "negatives": lambda: looped(_negatives),
    "mask": lambda: looped(_masked),
    "uneven": lambda: fitted("numbers", _relu, _out, rows=20, weights=np.abs(_numbers(ALL_ROWS))),
    "sharded": lambda: fitted("numbers", _relu, _relu, _out, kind="sharded"),
}


def main(names: list[str]) -> None:
    """Trains, and prints a line for each training."""
    for name in names or MODELS:
        try:
            said = f"BITS {name} {MODELS[name]()}"
        except rx.errors.ReplicaxError as error:
            said = f"REFUSED {name} {' '.join(str(error).split())}"
        print(said, flush=True)


if __name__ == "__main__":
    if "JAX_PROCESS_ID" not in os.environ:
        jax.config.update("jax_num_cpu_devices", int(os.environ.get("BITWISE_DEVICES", "1")))
    main(sys.argv[1:])
