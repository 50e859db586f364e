"""A custom training loop with Keras: the same step on one device or on many.

python examples/custom_loop_keras.py
python examples/custom_loop_keras.py --data mnist --data-dir DIR    # DIR holds MNIST's four .gz files
"""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from sklearn.datasets import load_digits

import replicax as rx

rx.config.set_virtual_devices(8)  # only to try it without accelerators; real GPUs are used where there are some

BATCH = 128  # the global batch size: what all replicas process together in one step


def digits():
    """Returns images and labels to train on, and images and labels to test on."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")
    shuffled = np.random.default_rng(0).permutation(len(labels))
    train, test = np.split(shuffled, [4 * len(labels) // 5])
    return images[train], labels[train], images[test], labels[test]


def mnist(folder):
    def read(name, header):  # after a header of so many bytes come the values, one byte each
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header)

    def images(part):
        return read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype("float32") / 255

    def labels(part):
        return read(f"{part}-labels-idx1-ubyte.gz", 8).astype("int32")

    return images("train"), labels("train"), images("t10k"), labels("t10k")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--data-dir", type=Path, default=Path("."))
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    train_x, train_y, test_x, test_y = digits() if args.data == "digits" else mnist(args.data_dir)

    strategy = rx.MirroredStrategy()  # every local device

    # Everything that creates variables goes into the scope: each device gets a copy, and all copies stay equal.
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((train_x.shape[1],)),
                keras.layers.Dense(700, "relu"),
                keras.layers.Dense(500, "relu"),
                keras.layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam(1e-3)
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train_step(batch):  # one replica's view: its share of the rows
        x, y = batch

        def loss_fn():
            logits = model(x, training=True)
            accuracy.update_state(y, logits)
            # Divided by the global batch size, so that the replicas' losses and gradients add up to the batch's.
            return rx.compute_average_loss(per_example_loss(y, logits), global_batch_size=BATCH)

        loss, grads = rx.value_and_grad(loss_fn, model.trainable_variables)()  # gradients are summed over replicas
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    def test_step(batch):
        x, y = batch
        accuracy.update_state(y, model(x, training=False))

    @rx.function
    def distributed_train_step(batch):
        return strategy.reduce("sum", strategy.run(train_step, args=(batch,)), axis=None)

    @rx.function
    def distributed_test_step(batch):
        strategy.run(test_step, args=(batch,))

    train = strategy.distribute_dataset((train_x, train_y), batch_size=BATCH)
    test = strategy.distribute_dataset((test_x, test_y), batch_size=BATCH)
    print(f"{args.data}: {len(train_y)} rows on {strategy.num_replicas_in_sync} replicas")

    for epoch in range(args.epochs):
        losses = [distributed_train_step(batch) for batch in train]
        line = f"epoch {epoch}: loss {np.mean(losses):.3f}, accuracy {float(accuracy.result()):.3f}"
        accuracy.reset_state()
        for batch in test:
            distributed_test_step(batch)
        print(f"{line}, test accuracy {float(accuracy.result()):.3f}")
        accuracy.reset_state()


if __name__ == "__main__":
    main()
