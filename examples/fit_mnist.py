"""`Model.fit` on many devices: a network with two hidden layers, or a small convolutional one, learns digits.

    python examples/fit_mnist.py
    python examples/fit_mnist.py --model conv --data mnist --data-dir DIR    # DIR holds MNIST's four .gz files

Only the lines with `strategy` are not plain Keras. The second command reaches a test accuracy of 0.988, in 50 s on
two CPU cores that play eight devices.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import replicax as rx

rx.config.set_virtual_devices(8)  # only to try it without accelerators; real GPUs are used where there are some


def digits():
    """Returns images and labels to train on, and images and labels to test on."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32").reshape(-1, 8, 8, 1), labels.astype("int32")
    shuffled = np.random.default_rng(0).permutation(len(labels))
    train, test = np.split(shuffled, [4 * len(labels) // 5])
    return images[train], labels[train], images[test], labels[test]


def mnist(folder):
    def read(name, header):  # after a header of so many bytes come the values, one byte each
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header)

    def images(part):
        return read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1).astype("float32") / 255

    def labels(part):
        return read(f"{part}-labels-idx1-ubyte.gz", 8).astype("int32")

    return images("train"), labels("train"), images("t10k"), labels("t10k")


def mlp(shape):
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Flatten(),
            layers.Dense(700, "relu"),
            layers.Dense(500, "relu"),
            layers.Dense(10),
        ]
    )


def conv(shape):
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, "relu"),
            layers.Dense(10),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["mlp", "conv"], default="mlp")
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--data-dir", type=Path, default=Path("."))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128, help="of all replicas together")
    parser.add_argument("--limit", type=int, help="use no more rows, for training and for testing each")
    args = parser.parse_args()
    arrays = digits() if args.data == "digits" else mnist(args.data_dir)
    train_x, train_y, test_x, test_y = (array[: args.limit] for array in arrays)
    keras.utils.set_random_seed(0)

    strategy = rx.MirroredStrategy()  # every local device
    with strategy.scope():
        model = (mlp if args.model == "mlp" else conv)(train_x.shape[1:])

    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    print(f"{args.data}: {len(train_y)} rows on {strategy.num_replicas_in_sync} replicas")
    start = time.perf_counter()
    model.fit(train_x, train_y, batch_size=args.batch_size, epochs=args.epochs, verbose=2)
    print(f"training took {time.perf_counter() - start:.1f} s")
    _, accuracy = model.evaluate(test_x, test_y, batch_size=args.batch_size, verbose=0)
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
