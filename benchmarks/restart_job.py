"""The job that `restart.py` kills: the network of `examples/fit_mnist.py`, trained by `fit` or by a loop of its own.

It is a script as users write it, but for the marks: each says what this process has come to, and when.
"""

from __future__ import annotations

import os
import sys
import time

BEGAN = time.monotonic()
if os.environ.get("BENCHMARK_WEIGHT"):
    with open("/proc/self/autogroup", "w") as weight:
        weight.write(os.environ["BENCHMARK_WEIGHT"])
os.environ.setdefault("KERAS_BACKEND", "jax")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

import replicax as rx  # noqa: E402

IMPORTED = time.monotonic()
ROWS = 128


def digits():
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype("float32").reshape(-1, 8, 8, 1), labels.astype("int32")


def mlp():
    layers = keras.layers
    sizes = [layers.Dense(700, "relu"), layers.Dense(500, "relu"), layers.Dense(10)]
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), *sizes])


def fit(strategy, folder, steps, mark):
    with strategy.scope():
        model = mlp()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"])
    mark("built")
    x, y = digits()
    epochs = -(-steps * ROWS // len(x))

    class Marks(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            mark("restored")

        def on_train_batch_end(self, batch, logs=None):
            mark("step")

    backup = rx.keras.BackupAndRestore(os.path.join(folder, "backup"), save_freq=20)
    model.fit(x, y, batch_size=ROWS, epochs=epochs, shuffle=True, verbose=0, callbacks=[backup, Marks()])


def loop(strategy, folder, steps, mark):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = mlp()
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    mark("built")

    def train_step(batch):
        x, y = batch

        def loss_fn():
            return rx.compute_average_loss(losses(y, model(x, training=True)), global_batch_size=ROWS)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @rx.function
    def step(batch):
        return strategy.reduce("sum", strategy.run(train_step, args=(batch,)), axis=None)

    manager = rx.CheckpointManager(
        os.path.join(folder, "checkpoints"), objects={"model": model, "optimizer": optimizer}, save_interval_steps=20
    )
    done = manager.restore_or_initialize() or 0
    mark("restored")
    dataset = strategy.distribute_dataset(digits(), batch_size=ROWS)
    while done < steps:
        for batch in dataset:
            float(step(batch))
            done += 1
            mark("step")
            manager.save(done)


def main():
    kind, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    attempt = os.environ.get("REPLICAX_ATTEMPT", "0")
    strategy = rx.MultiWorkerMirroredStrategy()
    worker = strategy.cluster_resolver.task_id
    with open(os.path.join(folder, f"marks-{worker}.txt"), "a", buffering=1) as file:

        def mark(what, at=None):
            file.write(f"{attempt} {os.getpid()} {what} {time.monotonic() if at is None else at:.4f}\n")

        mark("began", BEGAN)
        mark("imported", IMPORTED)
        mark("connected")
        np.random.seed(0)
        {"fit": fit, "loop": loop}[kind](strategy, folder, steps, mark)


if __name__ == "__main__":
    main()
