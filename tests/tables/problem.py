"""A small model of tables, trained by Keras RS on one device and by the layer under test on several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import keras_rs
import numpy as np

import replicax as rx

ROWS, OTHER_ROWS, COLUMNS = 37, 20, 4
LENGTHS = (16, 16, 10)  # rows of the batches: the last is smaller, and 3 and 8 replicas do not divide it
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)),
    "ftrl": lambda: keras.optimizers.Ftrl(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.1, beta=0.1
    ),
}


def configs(optimizer: str, combiner: str, width: int | None = 3) -> dict[str, Any]:
    """Returns features of two tables, one of which two features share."""
    normal = keras.initializers.RandomNormal(seed=1)
    uniform = keras.initializers.RandomUniform(seed=2)
    table = keras_rs.layers.TableConfig("large", ROWS, COLUMNS, normal, OPTIMIZERS[optimizer](), combiner)
    other = keras_rs.layers.TableConfig("small", OTHER_ROWS, COLUMNS, uniform, OPTIMIZERS[optimizer](), "sum")

    def feature(name: str, table: keras_rs.layers.TableConfig, *shape: int | None) -> keras_rs.layers.FeatureConfig:
        return keras_rs.layers.FeatureConfig(name, table, (16, *shape), (16, COLUMNS))

    return {"many": feature("many", table, width), "one": [feature("one", table), feature("others", other, 2)]}


def batches(kind: str, ids: Callable[[np.random.Generator, tuple[int, ...], int], np.ndarray]) -> list[tuple[Any, ...]]:
    """Returns batches of (inputs, weights, targets); `kind` is dense, ragged or weighted."""
    rng = np.random.default_rng(0)
    found: list[tuple[Any, ...]] = []
    for rows in LENGTHS:
        many: Any = ids(rng, (rows, 3), ROWS)
        weights: Any = None
        if kind == "ragged":
            ragged = np.empty(rows, object)
            ragged[:] = [each[: rng.integers(0, 4)] for each in many]
            many = ragged
        inputs = {"many": many, "one": [ids(rng, (rows,), ROWS), ids(rng, (rows, 2), OTHER_ROWS)]}
        if kind == "weighted":
            weights = keras.tree.map_structure(lambda x: rng.uniform(0.1, 1, x.shape).astype("float32"), inputs)
        found.append((inputs, weights, rng.normal(size=(rows, 1)).astype("float32")))
    return found


def spread_ids(rng: np.random.Generator, shape: tuple[int, ...], rows: int) -> np.ndarray:
    return rng.integers(0, rows, shape).astype("int32")


def mirrored(replicas: int) -> rx.Strategy:
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])


class Model(keras.Model):
    """The layer, and a dense one."""

    def __init__(self, layer: keras.Layer):
        super().__init__()
        self.layer = layer
        self.dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=3))

    def call(self, inputs: Any) -> jax.Array:
        return self.dense(keras.ops.concatenate(keras.tree.flatten(self.layer(inputs)), axis=-1))


def by_keras_rs(
    optimizer: str, combiner: str, data: list[tuple[Any, ...]], width: int | None = 3
) -> dict[str, np.ndarray]:
    """Trains on one device; returns the tables and the dense kernel.

    Keras RS trains tables of a CPU with the optimizer of the model. Here that is, for the tables, the optimizer of
    their configuration; what it does to rows that no id of the step names is undone.
    """
    layer = keras_rs.layers.DistributedEmbedding(configs(optimizer, combiner, width))
    model, dense_optimizer = Model(layer), keras.optimizers.SGD(0.1)
    optimizers: dict[str, keras.optimizers.Optimizer] = {}
    for inputs, weights, targets in data:
        given = layer.preprocess(inputs, weights)
        model(given)
        tables = [v for v in model.trainable_variables if v.name == "embeddings"]
        others = [v for v in model.trainable_variables if v.name != "embeddings"]

        def loss(tables_now: Any, others_now: Any, given: Any = given, targets: Any = targets) -> jax.Array:
            values = {id(v): x for v, x in zip([*tables, *others], [*tables_now, *others_now], strict=True)}  # noqa: B023
            predicted, _ = model.stateless_call([values[id(v)] for v in model.trainable_variables], [], given)
            return jnp.mean((predicted - targets) ** 2)

        of_tables, of_others = jax.grad(loss, argnums=(0, 1))([v.value for v in tables], [v.value for v in others])
        dense_optimizer.apply(of_others, others)
        named = given["preprocessed_inputs_per_placement"]["default_device"]["inputs"]
        for variable, gradient in zip(tables, of_tables, strict=True):
            is_large = variable.shape[0] == ROWS
            touched = np.concatenate([np.ravel(x) for p, x in named.items() if (p != "one.1") == is_large])
            own = optimizers.setdefault(variable.path, OPTIMIZERS[optimizer]())
            own.build([variable])
            _apply_to(own, variable, gradient, touched)
    kernel = next(v for v in others if v.name == "kernel")
    return {**{name: np.asarray(x) for name, x in layer.get_embedding_tables().items()}, "dense": np.asarray(kernel)}


def _apply_to(own: keras.optimizers.Optimizer, variable: keras.Variable, gradient: jax.Array, rows: np.ndarray) -> None:
    state = [variable, *(v for v in own.variables if v.shape == variable.shape)]
    before = [np.asarray(v) for v in state]
    own.apply([gradient], [variable])
    untouched = np.setdiff1d(np.arange(variable.shape[0]), rows)
    for each, old in zip(state, before, strict=True):
        new = np.array(each.value)
        new[untouched] = old[untouched]
        each.assign(new)


def trained(
    strategy: rx.Strategy, how: str, optimizer: str, combiner: str, data: list[tuple[Any, ...]], width: int | None = 3
) -> dict[str, np.ndarray]:
    """Trains under a strategy, by `fit`'s steps or in a custom loop; returns the tables and the dense kernel."""
    with strategy.scope():
        model = Model(rx.keras.DistributedEmbedding(configs(optimizer, combiner, width)))
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    given = [(model.layer.preprocess(inputs, weights), targets) for inputs, weights, targets in data]
    if how == "fit":
        for inputs, targets in given:
            model.train_on_batch(inputs, targets)
    else:
        in_loop(strategy, model, given)
    tables = {name: np.asarray(x) for name, x in model.layer.get_embedding_tables().items()}
    return {**tables, "dense": np.asarray(model.dense.kernel)}


def in_loop(strategy: rx.Strategy, model: Model, given: list[tuple[Any, np.ndarray]]) -> None:
    """Trains a model in a custom loop."""

    def replica_step(batch: Any, rows: Any) -> None:
        inputs, targets = batch

        def loss() -> jax.Array:
            each = jnp.square(model(inputs, training=True) - targets)[:, 0]
            return jnp.sum(each) / rows

        _, gradients = rx.value_and_grad(loss, model.trainable_variables)()
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @rx.function
    def step(batch: Any, rows: Any) -> None:
        strategy.run(replica_step, args=(batch, rows))

    def global_batches() -> Iterator[Any]:
        yield from given

    for batch, (_, targets) in zip(strategy.distribute_dataset(list(global_batches())), given, strict=True):
        step(batch, jnp.float32(len(targets)))
