"""Synchronous training on remote servers, from a client such as a laptop.

On each machine, with the same REPLICAX_TOKEN in the environment:

    replicax server --cluster '{"worker": ["host1:2222", "host2:2222"]}' --job worker --index 0

On the laptop:

    python examples/standalone_client.py --remote '{"worker": ["host1:2222", "host2:2222"]}'

Without --remote it is an ordinary script of a worker: `replicax run --workers 2 examples/standalone_client.py` computes
the same, bit for bit. `examples/standalone_client.sh` shows both on one machine.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import replicax as rx

ROWS, FEATURES = 480, 8


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Returns features of shape (480, 8) and a noisy target of shape (480, 1), float32."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, FEATURES)).astype("float32")
    noise = random.normal(scale=0.1, size=(ROWS, 1))
    return x, (np.sin(x).sum(axis=1, keepdims=True) + noise).astype("float32")


def make_model(width: int) -> keras.Model:
    """Returns a small compiled model; call it in the strategy's scope."""
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dropout(0.1),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return model


def residuals(strategy: rx.Strategy, model: keras.Model, x: np.ndarray, y: np.ndarray) -> float:
    """Returns the mean squared residual by a custom loop: on a client, call it through `strategy.remote`."""

    def step(batch: tuple[np.ndarray, np.ndarray]) -> object:
        features, targets = batch
        return ((model(features, training=False) - targets) ** 2).mean(axis=1)

    batches = strategy.distribute_dataset((x, y), batch_size=96)
    means = [float(strategy.reduce("mean", strategy.run(step, (batch,)), axis=0)) for batch in batches]
    return sum(means) / len(means)


def main() -> None:
    """Trains for some epochs, in two calls of fit; the second goes on where the first has ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--remote", type=json.loads, help="the servers, as JSON; without it this is a worker's script")
    parser.add_argument("--width", type=int, default=16, help="units of the hidden layer")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of each of the two calls of fit")
    parser.add_argument("--out", help="where the chief writes all variables (.npz)")
    settings = parser.parse_args()

    keras.utils.set_random_seed(7)
    strategy = rx.MultiWorkerMirroredStrategy(remote_cluster=settings.remote)
    with strategy.scope():
        model = make_model(settings.width)
    x, y = make_data()
    for _ in range(2):
        history = model.fit(x, y, batch_size=96, epochs=settings.epochs, verbose=2)
    found = strategy.remote(residuals, strategy, model, x, y)
    if strategy.is_chief:
        print(f"loss {history.history['loss'][-1]:.6f}, mean squared residual {found:.6f}")
        if settings.out:
            np.savez(settings.out, *[np.asarray(each) for each in [*model.variables, *model.optimizer.variables]])
    strategy.close()


if __name__ == "__main__":
    main()
