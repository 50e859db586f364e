"""`rx.keras.DistributedEmbedding` computes what `keras_rs` computes on one device."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import keras
import keras_rs
import numpy as np
import pytest

import replicax as rx
from replicax.tables.features import as_ids
from replicax.tables.inputs import MOST_IDS, check_range
from tests.tables import problem

COMBINERS = ("sum", "mean", "sqrtn")
KINDS = ("dense", "ragged", "weighted")
#: Each optimizer, combiner, kind of input and number of replicas at least once.
SOME = [
    ("sgd", "mean", "dense", 8, "run"),
    ("adagrad", "sum", "weighted", 3, "fit"),
    ("adam", "sqrtn", "ragged", 2, "run"),
    ("ftrl", "mean", "ragged", 8, "fit"),
    ("adam", "sum", "dense", 1, "fit"),
]
ALL = [
    (*each, replicas, how)
    for each in itertools.product(problem.OPTIMIZERS, COMBINERS, KINDS)
    for replicas, how in itertools.product((1, 2, 3, 8), ("fit", "run"))
]


def assert_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.daily(2)
@pytest.mark.filterwarnings("ignore:.*is split over")
@pytest.mark.parametrize(
    "case", [*SOME, *(pytest.param(case, marks=pytest.mark.nightly) for case in ALL if case not in SOME)], ids=str
)
def test_training_is_that_of_keras_rs(case: tuple[Any, ...]):
    optimizer, combiner, kind, replicas, how = case
    data = problem.batches(kind, problem.spread_ids)
    wanted = problem.by_keras_rs(optimizer, combiner, data)
    assert_equal(problem.trained(problem.mirrored(replicas), how, optimizer, combiner, data), wanted)


def all_the_same(rng: np.random.Generator, shape: tuple[int, ...], rows: int) -> np.ndarray:
    return np.full(shape, 5, "int32")


def all_of_one_device(rng: np.random.Generator, shape: tuple[int, ...], rows: int) -> np.ndarray:
    return (8 * rng.integers(0, rows // 8, shape)).astype("int32")


def all_distinct(rng: np.random.Generator, shape: tuple[int, ...], rows: int) -> np.ndarray:
    return np.resize(rng.permutation(rows), shape).astype("int32")


@pytest.mark.daily(2)
@pytest.mark.filterwarnings("ignore:.*is split over")
@pytest.mark.parametrize("ids", [all_the_same, all_of_one_device, all_distinct])
def test_any_distribution_of_ids_is_exact(ids: Any):
    data = problem.batches("dense", ids)
    wanted = problem.by_keras_rs("adagrad", "mean", data)
    assert_equal(problem.trained(problem.mirrored(8), "run", "adagrad", "mean", data), wanted)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "strategy",
    [
        lambda: rx.FullyShardedStrategy(["cpu:0", "cpu:1"], min_size=16),
        lambda: rx.LayoutStrategy(mesh_shape=(2, 2), layout="auto", devices=["cpu:0", "cpu:1", "cpu:2", "cpu:3"]),
        lambda: rx.CentralStorageStrategy(["cpu:0", "cpu:1"]),
    ],
)
def test_other_strategies_split_tables_too(strategy: Any):
    data = problem.batches("dense", problem.spread_ids)[:2]
    wanted = problem.by_keras_rs("adam", "sum", data)
    assert_equal(problem.trained(strategy(), "run", "adam", "sum", data), wanted)


class Single:
    """A layer with one table of SGD with a learning rate of one, and a loss that sums what is looked up."""

    def __init__(self, replicas: int = 2):
        table = keras_rs.layers.TableConfig("table", 8, 2, "zeros", keras.optimizers.SGD(1.0), "sum")
        self.strategy = problem.mirrored(replicas)
        with self.strategy.scope():
            self.layer = rx.keras.DistributedEmbedding(keras_rs.layers.FeatureConfig("ids", table, (2,), (2, 2)))
            self.other = keras.Variable(1.0)  # has a gradient, too, and stays
            self.optimizer = keras.optimizers.SGD(0.0)

    @property
    def variables(self) -> list[keras.Variable]:
        return [self.other, *self.layer.trainable_variables]

    def train(self, loss: Any, **options: Any) -> Any:
        value, gradients = rx.value_and_grad(lambda: self.other.value * loss(), self.variables, **options)()
        self.optimizer.apply(gradients, self.variables)
        return value

    def step(self, fn: Any, ids: Any) -> np.ndarray:
        (batch,) = self.strategy.distribute_dataset([np.asarray(ids, "int32")])
        rx.function(lambda batch: self.strategy.run(fn, args=(batch,)))(batch)
        return self.rows()

    def rows(self) -> np.ndarray:
        return np.asarray(self.layer.get_embedding_tables()["table"])[:, 0]


def test_two_look_ups_of_a_loss_make_one_step():
    single = Single()

    def loss(ids: Any) -> Any:
        return jnp.sum(single.layer(ids)) + 2 * jnp.sum(single.layer(ids + 1))

    rows = single.step(lambda ids: single.train(lambda: loss(ids)), [1, 2])
    np.testing.assert_allclose(rows, [0, -1, -3, -2, 0, 0, 0, 0])
    assert int(single.layer.non_trainable_variables[-1]) == 1


def test_a_mean_over_replicas_is_one_for_rows_too():
    single = Single()

    def step(ids: Any) -> None:
        single.train(lambda: jnp.sum(single.layer(ids)), aggregation="mean")

    np.testing.assert_allclose(single.step(step, [1, 2]), [0, -0.5, -0.5, 0, 0, 0, 0, 0])


def test_a_gradient_inside_of_a_loss_changes_no_rows():
    single = Single()

    def penalty(ids: Any) -> Any:
        inner = rx.grad(lambda: jnp.sum(single.layer(ids)), single.layer.trainable_variables)()
        return jnp.sum(inner[0])

    rows = single.step(lambda ids: single.train(lambda: penalty(ids)), [1, 2])
    np.testing.assert_allclose(rows, 0)


def test_what_is_not_differentiated_with_respect_to_the_layer_stays():
    single = Single()
    other = rx.Variable(1.0)
    single.step(lambda ids: rx.grad(lambda: jnp.sum(single.layer(ids)) * other.value, [other])() and None, [1, 2])
    np.testing.assert_allclose(single.rows(), 0)


def test_a_backward_pass_in_a_transformation_is_refused():
    single = Single()

    def step(ids: Any) -> None:
        rx.grad(lambda: jax.checkpoint(lambda: jnp.sum(single.layer(ids)))(), single.layer.trainable_variables)()

    with pytest.raises(rx.errors.ProgramError, match="gradient of table 'table' was computed inside"):
        single.step(step, [1, 2])


def test_ids_out_of_range_give_nan_and_change_nothing():
    single = Single()
    found: list[Any] = []

    def step(ids: Any) -> Any:
        return single.train(lambda: jnp.sum(single.layer(ids)))

    (batch,) = single.strategy.distribute_dataset([np.array([1, 9], "int32")])
    found = single.strategy.local_results(rx.function(lambda b: single.strategy.run(step, args=(b,)))(batch))
    np.testing.assert_array_equal(np.asarray(found), [0, np.nan])
    np.testing.assert_array_equal(single.rows(), [0, -1, 0, 0, 0, 0, 0, 0])
    with pytest.raises(rx.errors.ArgumentError, match="has the id 9, but its table has the rows 0 to 7"):
        single.layer(np.array([1, 9]))


def test_plain_keras_is_told_to_use_a_strategy():
    table = keras_rs.layers.TableConfig("table", 8, 2, "zeros", "sgd", "sum")
    layer = rx.keras.DistributedEmbedding(keras_rs.layers.FeatureConfig("ids", table, (2,), (2, 2)))
    model = keras.Sequential([layer])
    model.compile(optimizer="sgd", loss="mse")
    with pytest.raises(rx.errors.ProgramError, match="Make the model in a strategy's scope"):
        model.train_on_batch(np.array([1, 2]), np.zeros((2, 2)))


def test_no_buffer_has_the_size_of_the_table_besides_the_table():
    """One device's program has its rows of the table and the slot as arguments, overwrites them, and copies nothing."""
    rows, columns = 80_000, 16
    config = keras_rs.layers.TableConfig("table", rows, columns, "zeros", "adagrad", "sum")
    strategy = problem.mirrored(8)
    with strategy.scope():
        layer = rx.keras.DistributedEmbedding(keras_rs.layers.FeatureConfig("ids", config, (64,), (64, columns)))
        optimizer = keras.optimizers.SGD(1.0)

    def step(ids: Any) -> None:
        optimizer.apply(rx.grad(lambda: jnp.sum(layer(ids)), layer.trainable_variables)(), layer.trainable_variables)

    (batch,) = strategy.distribute_dataset([np.arange(64, dtype="int32")])
    compiled = rx.function(lambda batch: strategy.run(step, args=(batch,))).lower(batch).compile()
    memory, table = compiled.memory_analysis(), rows * columns * 4 // 8
    assert memory.temp_size_in_bytes < table // 4
    assert memory.alias_size_in_bytes >= 2 * table
    assert f"f32[{rows},{columns}]" not in compiled.as_text()


@pytest.mark.daily(2)
@pytest.mark.parametrize("optimizer", ["adam", "ftrl"])
@pytest.mark.parametrize("replicas", [1, 8])
def test_padding_changes_no_row(optimizer: str, replicas: int):
    """Momentum would move row 0, which fills rows of ids up, although no id names it."""
    strategy = problem.mirrored(replicas)
    with strategy.scope():
        table = keras_rs.layers.TableConfig("t", 16, 3, optimizer=optimizer, combiner="sum")
        feature = keras_rs.layers.FeatureConfig("f", table, (None, 3), (None, 3))
        layer = rx.keras.DistributedEmbedding({"f": feature})
        layer.build({"f": (None, 3)})

    def replica_step(ids: Any) -> Any:
        return rx.value_and_grad(lambda: jnp.sum(layer(ids)["f"] ** 2), layer.trainable_variables)()[0]

    @rx.function
    def step(ids: Any) -> Any:
        return strategy.run(replica_step, args=(ids,))

    tables = []
    for bags in ([[0, 1], [0]] * 4, [[3], [4, 5, 6]] * 4):
        with strategy.scope():
            for batch in strategy.distribute_dataset([layer.preprocess({"f": bags})]):
                step(batch)
        tables.append(np.asarray(layer.get_embedding_tables()["t"]))
    changed = np.flatnonzero((tables[0] != tables[1]).any(axis=1))
    assert changed.tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (np.array([2**32 + 5]), "has the id 4294967301, but its table grows by ids from 0 to 2147483647"),
        (np.array([-1]), "has the id -1, but its table grows"),
        (np.array([np.inf]), "got inf in an array of float64"),
        (np.array([1.5], np.float32), "got 1.5 in an array of float32"),
        (np.array([2**24 + 2], np.float32), "which has every whole number below 16777216 only"),
    ],
)
def test_ids_that_would_share_a_row_in_silence_are_refused(ids: np.ndarray, said: str):
    with pytest.raises(rx.errors.ArgumentError, match=said):
        check_range(ids, None, "item")


def test_what_int32_does_not_have_becomes_an_id_that_no_table_has():
    for ids, expected in (
        (jnp.array([1.0, 1.5, jnp.nan, jnp.inf, -jnp.inf, 3e9]), [1, *[MOST_IDS - 1] * 5]),
        (jnp.array([7, 2**32 - 1], jnp.uint32), [7, MOST_IDS - 1]),
        (jnp.array([-3, 5], jnp.int8), [-3, 5]),
    ):
        np.testing.assert_array_equal(jax.jit(as_ids)(ids), expected)
    for wrong in (jnp.array([True]), jnp.array([1j])):
        with pytest.raises(rx.errors.ArgumentError, match="Ids are integers"):
            jax.jit(as_ids)(wrong)
