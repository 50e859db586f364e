"""`rx.keras.DistributedEmbedding` under a parameter server strategy: the numbers of Keras RS on one device."""

from __future__ import annotations

import itertools

import keras
import keras_rs
import numpy as np
import pytest

import replicax as rx
from replicax.parameter_server.variables.remote import home_of
from tests.parameter_server.fakes import strategy_of

ROWS, COLUMNS, BATCH, LENGTH = 12, 4, 8, 6
COMBINERS = ("sum", "mean", "sqrtn")
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
}
EVERY_PAIR = list(itertools.product(COMBINERS, OPTIMIZERS))
SHORT = [("sum", "adam"), ("mean", "adagrad"), ("sqrtn", "ftrl"), ("mean", "sgd")]
PAIRS = [pair if pair in SHORT else pytest.param(*pair, marks=pytest.mark.nightly) for pair in EVERY_PAIR]


def features(optimizer, combiner="mean", rows=ROWS):
    """Two features of one table, and one of another one."""
    normal = [keras.initializers.RandomNormal(seed=seed) for seed in (0, 1)]
    items = keras_rs.layers.TableConfig("items", rows, COLUMNS, normal[0], optimizer, combiner, "default_device")
    users = keras_rs.layers.TableConfig("users", rows, COLUMNS, normal[1], optimizer, combiner, "default_device")
    shapes = {"item": (items, LENGTH), "other": (items, 3), "user": (users, LENGTH)}
    return {
        name: keras_rs.layers.FeatureConfig(name, table, (BATCH, length), (BATCH, COLUMNS))
        for name, (table, length) in shapes.items()
    }


def batches(count=4):
    """Ids, some of them twice, of which each table's rows are all in each batch; weights; and targets."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        ids = {}
        for name, length in (("item", LENGTH), ("other", 3), ("user", LENGTH)):
            given = np.concatenate([np.arange(ROWS), rng.integers(0, ROWS, BATCH * length - ROWS)])
            ids[name] = rng.permutation(given).reshape(BATCH, length).astype(np.int32)
        weights = {name: rng.uniform(0.5, 2.0, each.shape).astype(np.float32) for name, each in ids.items()}
        yield ids, weights, rng.standard_normal((BATCH, COLUMNS)).astype(np.float32)


def loss_of(rows, targets):
    return keras.ops.mean(keras.ops.square(rows["item"] * rows["user"] + rows["other"] - targets))


def trained_by_keras_rs(make_optimizer, combiner):
    with rx.OneDeviceStrategy("cpu:0").scope():
        layer = keras_rs.layers.DistributedEmbedding(features("sgd", combiner))
        layer.build({name: each.shape for name, each in next(iter(batches()))[0].items()})
        optimizer = make_optimizer()
        optimizer.build(layer.trainable_variables)

    @rx.function
    def step(ids, weights, targets):
        variables = layer.trainable_variables
        loss, gradients = rx.value_and_grad(lambda: loss_of(layer(ids, weights), targets), variables)()
        optimizer.apply(gradients, variables)
        return loss

    losses = [float(step(*batch)) for batch in batches()]
    return losses, {name: np.asarray(value) for name, value in layer.get_embedding_tables().items()}


def trained_on_servers(strategy, make_layer):
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        layer = make_layer()

    def step(ids, weights, targets):
        loss, _ = rx.value_and_grad(lambda: loss_of(layer(ids, weights), targets), layer.trainable_variables)()
        return loss

    losses = [float(coordinator.schedule(step, args=batch).fetch()) for batch in batches()]
    return losses, layer


@pytest.mark.daily(2)
@pytest.mark.parametrize(("combiner", "name"), PAIRS)
def test_tables_are_those_of_keras_rs(fake_ray, combiner, name):
    wanted_losses, wanted = trained_by_keras_rs(OPTIMIZERS[name], combiner)
    with strategy_of(1, 2, max_staleness=0) as strategy:
        configs = features(OPTIMIZERS[name](), combiner)  # outside of the scope, as users have them
        losses, layer = trained_on_servers(strategy, lambda: rx.keras.DistributedEmbedding(configs))
        np.testing.assert_allclose(losses, wanted_losses, rtol=1e-6)
        got = layer.get_embedding_tables()
        assert sorted(got) == sorted(wanted)
        for table, rows in wanted.items():
            np.testing.assert_allclose(np.asarray(got[table]), rows, rtol=1e-6, atol=1e-7)
        for variable in layer.weights:
            if tuple(variable.shape) == (ROWS, COLUMNS):
                assert home_of(variable).servers in ((0, 1), (1, 0)), variable.path


@pytest.mark.nightly
def test_growing_tables_learn_what_fixed_ones_do(fake_ray, tmp_path):
    def growing():
        normal = [keras.initializers.RandomNormal(seed=seed) for seed in (0, 1)]
        items, users = (
            rx.keras.GrowingTable(name, COLUMNS, 10 * ROWS, initializer, OPTIMIZERS["adagrad"](), "sum")
            for name, initializer in zip(("items", "users"), normal, strict=True)
        )
        shapes = {"item": (items, LENGTH), "other": (items, 3), "user": (users, LENGTH)}
        return rx.keras.DistributedEmbedding({
            name: keras_rs.layers.FeatureConfig(name, table, (BATCH, length), (BATCH, COLUMNS))
            for name, (table, length) in shapes.items()
        })  # fmt: skip

    with strategy_of(1, 2, max_staleness=0) as strategy:
        wanted, _ = trained_on_servers(
            strategy, lambda: rx.keras.DistributedEmbedding(features(OPTIMIZERS["adagrad"](), "sum"))
        )
    with strategy_of(1, 2, max_staleness=0) as strategy:
        losses, layer = trained_on_servers(strategy, growing)
        np.testing.assert_allclose(losses, wanted, rtol=1e-6)
        model = keras.Sequential([layer])
        model.built = True
        model.save_weights(tmp_path / "growing.weights.h5")
        after = trained_on_servers(strategy, lambda: layer)[0]
        model.load_weights(tmp_path / "growing.weights.h5")
        np.testing.assert_allclose(trained_on_servers(strategy, lambda: layer)[0], after, rtol=1e-6)
    with rx.OneDeviceStrategy("cpu:0").scope(), pytest.raises(rx.errors.ArgumentError, match="parameter servers"):
        growing()
    with pytest.raises(rx.errors.ArgumentError, match="evict"):
        rx.keras.GrowingTable("users", 4, 10, evict="fifo")
    with pytest.raises(rx.errors.ArgumentError, match="capacity"):
        rx.keras.GrowingTable("users", 4, 0)


@pytest.mark.nightly
def test_fit_evaluate_and_predict_are_those_of_one_device(fake_ray):
    rng = np.random.default_rng(0)
    ids = {name: rng.integers(0, ROWS, (20, length), np.int32) for name, length in (("item", LENGTH), ("user", 2))}
    targets = rng.standard_normal((20, 1)).astype(np.float32)

    def trained(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            configs = features(keras.optimizers.Adam(0.01))
            configs = {
                name: keras_rs.layers.FeatureConfig(name, configs[name].table, (None, each.shape[1]), (None, COLUMNS))
                for name, each in ids.items()
            }
            inputs = {name: keras.Input(each.shape[1:], dtype="int32", name=name) for name, each in ids.items()}
            rows = rx.keras.DistributedEmbedding(configs)(inputs)
            product = keras_rs.layers.DotInteraction()([*rows.values()])
            model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([product, *rows.values()])))
            model.compile(keras.optimizers.SGD(0.1), "mse")
        history = model.fit(ids, targets, batch_size=8, epochs=2, shuffle=False, verbose=0)
        scores = [*history.history["loss"], model.evaluate(ids, targets, batch_size=8, verbose=0)]
        return scores, model.predict(ids, batch_size=8, verbose=0), [np.asarray(each) for each in model.weights]

    alone = trained(rx.OneDeviceStrategy("cpu:0"))
    with strategy_of(1, 2, max_staleness=0) as strategy:
        served = trained(strategy)
    for mine, his in zip(served, alone, strict=True):
        for one, other in zip(mine, his, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-6)


def test_an_initializer_that_draws_from_a_generator(fake_ray):
    def layer_of(config):
        feature = keras_rs.layers.FeatureConfig("item", config, (BATCH, 2), (BATCH, COLUMNS))
        return rx.keras.DistributedEmbedding({"item": feature})

    ids = np.arange(2 * BATCH, dtype=np.int32).reshape(BATCH, 2)
    with strategy_of(1, 2, max_staleness=0) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            drawn = keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(0))
            fixed = layer_of(keras_rs.layers.TableConfig("items", 1_100_000, COLUMNS, drawn, "sgd"))
            growing = layer_of(rx.keras.GrowingTable("users", COLUMNS, 100, drawn, "sgd"))
        rows = coordinator.schedule(lambda ids: fixed({"item": ids})["item"], args=(ids,)).fetch()
        assert np.abs(rows).min() > 0
        with pytest.raises(rx.errors.ProgramError, match="fixed seed"):
            coordinator.schedule(lambda ids: growing({"item": ids})["item"], args=(ids,))


def test_a_layer_of_growing_tables_is_made_again_from_its_configuration(fake_ray):
    table = rx.keras.GrowingTable(
        "users", COLUMNS, 100, keras.initializers.RandomNormal(seed=3), "adagrad", evict="age"
    )
    feature = keras_rs.layers.FeatureConfig("user", table, (None, 2), (None, COLUMNS))
    with strategy_of(1, 2) as strategy, strategy.scope():
        layer = rx.keras.DistributedEmbedding({"user": feature})
        again = type(layer).from_config(layer.get_config())
        assert again.get_config() == layer.get_config()
        assert [tuple(each.shape) for each in again.weights] == [tuple(each.shape) for each in layer.weights]
