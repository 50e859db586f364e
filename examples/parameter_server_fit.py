"""Asynchronous `Model.fit`: servers keep the variables, and each worker trains at its own pace.

    replicax run --ps 2 --workers 3 examples/parameter_server_fit.py

The script runs in the coordinator alone. Each worker calls `worker_digits` and reads the images that are its own; `fit`
schedules the steps of an epoch on whichever worker is free, and callbacks and validation see what they always do.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from sklearn.datasets import load_digits

import replicax as rx

BATCH = 64


def digits():
    """Returns images and labels to train on, and images and labels to test on."""
    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[shuffled] / 16).astype("float32"), labels[shuffled].astype("int32")
    rows = 4 * len(labels) // 5
    return images[:rows], labels[:rows], images[rows:], labels[rows:]


def worker_digits(context):
    """What each worker calls to make its data: batches without end, of the rows that are its own."""
    images, labels, _, _ = digits()
    own = slice(context.input_pipeline_id, None, context.num_input_pipelines)
    images, labels = images[own], labels[own]
    rng = np.random.default_rng(context.input_pipeline_id)
    while True:
        rows = rng.choice(len(labels), BATCH, replace=False)
        yield images[rows], labels[rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()

    with rx.ParameterServerStrategy() as strategy:
        with strategy.scope():
            model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
            model.compile(
                optimizer=keras.optimizers.Adam(1e-3),
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
            )

        train_x, _, test_x, test_y = digits()
        history = model.fit(
            rx.data.DatasetCreator(worker_digits),
            steps_per_epoch=len(train_x) // BATCH,
            epochs=args.epochs,
            validation_data=(test_x, test_y),
            callbacks=[keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)],
            verbose=2,
        ).history
        for name, values in history.items():
            print(f"{name}: {' '.join(f'{value:.4f}' for value in values)}")
        loss, accuracy = model.evaluate(test_x, test_y, verbose=0)  # every row once
        predicted = model.predict(test_x, verbose=0).argmax(1)  # in order
        steps = [worker.steps for worker in rx.coordinator.ClusterCoordinator(strategy).stats().workers]
        print(f"steps of each worker: {steps}")
        print(f"test loss {loss:.4f}, of {len(predicted)} predictions {np.mean(predicted == test_y):.4f} are right")
        print(f"RESULT ps_fit_accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
