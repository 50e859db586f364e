"""A recommender of Keras RS with its tables sharded: on one device, on 8 devices, and on parameter servers.

    python examples/recommender.py                                  # all three, which takes some minutes
    python examples/recommender.py --kinds one_device servers --rows 20000

Who clicks what is made up, and the same in each run: users and items have tastes of eight dimensions that nobody sees,
popular items are shown far more often than others, and a click depends on the hour too. The model is a small DLRM
(Naumov et al., 2019): tables of users and of items, which an item's row and the mean of the rows of a user's history
come from, pairwise products of them (`keras_rs.layers.DotInteraction`), a cross layer (`keras_rs.layers.FeatureCross`)
and two dense ones. The tables have Adagrad, the dense layers Adam.

The lines that train are the same for all three; only the strategy differs. On 8 devices each has an eighth of the rows
of each table and of each batch. On parameter servers two workers train asynchronously: servers have the tables, and
only the rows of a batch travel. At the end it prints the area under the ROC curve of each on clicks it has not seen.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import keras_rs
import numpy as np
from sklearn.metrics import roc_auc_score

import replicax as rx

USERS, ITEMS, HISTORY, TASTES, HOURS = 1000, 3000, 4, 8, 4
COLUMNS = 16
KINDS = ("one_device", "mirrored", "servers")


def clicks(count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns what was shown to whom, and whether they clicked: int32 ids, float32 hours, float32 labels."""
    tastes = np.random.default_rng(0)
    users, items = (tastes.standard_normal((n, TASTES), np.float32) for n in (USERS, ITEMS))
    appeal, of_hours = tastes.standard_normal(ITEMS), tastes.standard_normal(HOURS)
    rng = np.random.default_rng(seed)
    user = rng.integers(0, USERS, count)
    item = np.floor(ITEMS ** rng.random(count)).astype(np.int64) - 1  # log-uniform: few items are shown most
    hours = rng.standard_normal((count, HOURS)).astype(np.float32)
    tried = rng.integers(0, ITEMS, (count, 8))  # of these eight, a user's history has the four that it likes best
    liking = np.einsum("nt,nkt->nk", users[user], items[tried])
    history = np.take_along_axis(tried, np.argsort(-liking, axis=1)[:, :HISTORY], axis=1)
    logits = 0.6 * np.sum(users[user] * items[item], axis=1) + 0.5 * appeal[item] + 0.5 * hours @ of_hours
    clicked = rng.random(count) < 1 / (1 + np.exp(-logits))
    ids = {"user": user[:, None], "item": item[:, None], "history": history}
    return {name: each.astype(np.int32) for name, each in ids.items()} | {"hours": hours}, clicked.astype(np.float32)


def make_model() -> keras.Model:
    """Returns the click's logit of users, items, histories and hours."""

    def table(name: str, rows: int) -> keras_rs.layers.TableConfig:
        initializer = keras.initializers.RandomNormal(stddev=0.1, seed=len(name))
        return keras_rs.layers.TableConfig(name, rows, COLUMNS, initializer, keras.optimizers.Adagrad(0.05, 1e-6))

    users, items = table("users", USERS), table("items", ITEMS)
    shapes = {"user": (users, 1), "item": (items, 1), "history": (items, HISTORY)}
    features = {
        name: keras_rs.layers.FeatureConfig(name, config, (None, length), (None, COLUMNS))
        for name, (config, length) in shapes.items()
    }
    inputs = {name: keras.Input((length,), dtype="int32", name=name) for name, (_, length) in shapes.items()}
    hours = keras.Input((HOURS,), name="hours")
    rows = rx.keras.DistributedEmbedding(features, name="tables")(inputs)
    vectors = [*rows.values(), keras.layers.Dense(COLUMNS, "relu")(hours)]
    products = keras_rs.layers.DotInteraction()(vectors)
    crossed = keras_rs.layers.FeatureCross(projection_dim=8)(keras.layers.Concatenate()([*vectors, products]))
    logit = keras.layers.Dense(1)(keras.layers.Dense(32, "relu")(crossed))
    return keras.Model({**inputs, "hours": hours}, logit)


def trained_auc(strategy: rx.Strategy, rows: int, batch: int, epochs: int) -> float:
    """Trains the model under a strategy; returns the area under the ROC curve on clicks it has not seen."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model()
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss)
    features, clicked = clicks(rows, seed=1)
    model.fit(features, clicked, batch_size=batch, epochs=epochs, shuffle=False, verbose=2)
    unseen, labels = clicks(40_000, seed=2)
    return float(roc_auc_score(labels, model.predict(unseen, batch_size=4000, verbose=0)[:, 0]))


def main() -> None:
    """Trains on each kind of strategy, and prints the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000, help="clicks to train on")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    rx.config.set_virtual_devices(8)
    strategies = {
        "one_device": lambda: rx.OneDeviceStrategy("cpu:0"),
        "mirrored": rx.MirroredStrategy,
        "servers": lambda: rx.ParameterServerStrategy(workers=2, servers=2),
    }
    for kind in options.kinds:
        strategy = strategies[kind]()
        auc = trained_auc(strategy, options.rows, options.batch, options.epochs)
        print(f"RESULT recommender_auc_{kind} {auc:.4f}", flush=True)
        if isinstance(strategy, rx.ParameterServerStrategy):
            strategy.close()


if __name__ == "__main__":
    main()
