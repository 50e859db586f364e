"""`Model.fit` on several workers: two lines differ from a script for one device.

    replicax run --workers 2 --devices-per-worker 2 examples/multi_worker_fit.py

Every worker runs this script and calls `fit` with the same data; each computes its own rows of every batch. The chief
alone prints, writes the checkpoints and the logs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from sklearn.datasets import load_digits

import replicax as rx


def digits():
    """Returns images and labels to train on, and images and labels to test on."""
    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[shuffled] / 16).astype("float32"), labels[shuffled].astype("int32")
    rows = 4 * len(labels) // 5
    return images[:rows], labels[:rows], images[rows:], labels[rows:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--logs", type=Path, help="folder for the checkpoints and logs, by default a temporary one")
    args = parser.parse_args()

    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])
        model.compile(
            optimizer=keras.optimizers.Adam(3e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    train_x, train_y, test_x, test_y = digits()
    folder = args.logs or Path(tempfile.gettempdir(), "replicax-multi-worker-fit")
    callbacks = [  # as on one device: only the chief's write
        keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.EarlyStopping(patience=3),
    ]
    if strategy.is_chief:
        folder.mkdir(parents=True, exist_ok=True)
    model.fit(
        train_x,
        train_y,
        batch_size=128,
        epochs=args.epochs,
        validation_data=(test_x, test_y),
        callbacks=callbacks,
        verbose=2,
    )
    loss, accuracy = model.evaluate(test_x, test_y, verbose=0)
    predicted = np.asarray(model.predict(test_x, verbose=0)).argmax(1)  # all rows, in order, on every worker
    if strategy.is_chief:
        print(f"{strategy.num_workers} worker(s): test loss {loss:.4f}, of {len(predicted)} predictions ", end="")
        print(f"{np.mean(predicted == test_y):.4f} are right")
        print(f"RESULT multi_worker_fit_accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
