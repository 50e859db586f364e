"""Low-communication training on several workers: DiLoCo, local SGD, or synchronous for comparison.

    replicax run --workers 2 examples/diloco_mnist.py
    replicax run --workers 2 examples/diloco_mnist.py --strategy mirrored
    replicax run --workers 2 examples/diloco_mnist.py --data mnist --data-dir DIR    # DIR holds MNIST's four .gz files

Each worker is an island, which trains alone for `--every` steps; then the islands exchange once what they have changed.
The loop is that of `multi_worker_custom_loop.py`. The last lines tell the accuracy on the test rows, the bytes that
each worker has sent, and the seconds that the steps took.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from sklearn.datasets import load_digits

import replicax as rx

ROWS = 64  # of a replica, in each step


def digits():
    """Returns images and labels to train on, and images and labels to test on."""
    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[shuffled] / 16).astype("float32"), labels[shuffled].astype("int32")
    return images[:1297], labels[:1297], images[1297:], labels[1297:]


def mnist(folder):
    def read(name, header):  # after a header of so many bytes come the values, one byte each
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header)

    def images(part):
        return read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype("float32") / 255

    def labels(part):
        return read(f"{part}-labels-idx1-ubyte.gz", 8).astype("int32")

    return images("train"), labels("train"), images("t10k"), labels("t10k")


def make_strategy(arguments):
    if arguments.strategy == "mirrored":
        return rx.MultiWorkerMirroredStrategy()
    if arguments.strategy == "local_sgd":
        return rx.LocalSGDStrategy(arguments.every)
    return rx.DiLoCoStrategy(arguments.every, fragments=arguments.fragments)


def batches(images, labels, rows):
    """Yields shuffled batches without end, the same on all workers: each strategy takes what is its own."""
    random = np.random.default_rng(1)
    while True:
        order = random.permutation(len(images))
        for start in range(0, len(images) - rows + 1, rows):
            chosen = order[start : start + rows]
            yield images[chosen], labels[chosen]


def train(strategy, images, labels, steps):
    """Returns the trained model and the seconds that the steps took, without the first, which is compiled."""
    keras.utils.set_random_seed(0)
    global_batch = ROWS * strategy.num_replicas_in_sync  # on islands: of one island
    with strategy.scope():
        shape = images.shape[1:]
        model = keras.Sequential(
            [
                keras.Input(shape),
                keras.layers.Dense(700, "relu"),
                keras.layers.Dense(500, "relu"),
                keras.layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam(1e-3)
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train_step(batch):  # one replica's view
        x, y = batch

        def loss_fn():
            return rx.compute_average_loss(per_example(y, model(x, training=True)), global_batch_size=global_batch)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @rx.function
    def step(batch):
        return strategy.reduce("sum", strategy.run(train_step, args=(batch,)), axis=None)

    started = 0.0
    with iter(strategy.distribute_dataset(lambda: batches(images, labels, global_batch))) as own:
        for number, batch in enumerate(itertools.islice(own, steps)):
            loss = step(batch)
            if number == 0:
                float(loss)
                started = time.perf_counter()
    if isinstance(strategy, (rx.LocalSGDStrategy, rx.DiLoCoStrategy)):
        strategy.synchronize()  # ends the last round: from here on all islands have one model
    np.asarray(model.variables[0])
    return model, time.perf_counter() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=["diloco", "local_sgd", "mirrored"], default="diloco")
    parser.add_argument("--every", type=int, default=50, help="steps of a round")
    parser.add_argument("--fragments", type=int, default=1, help="parts of the model that are sent one by one")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--data-dir", type=Path, default=Path("."))
    arguments = parser.parse_args()
    strategy = make_strategy(arguments)  # first of all: here the workers find each other
    images, labels, test_images, test_labels = digits() if arguments.data == "digits" else mnist(arguments.data_dir)
    model, seconds = train(strategy, images, labels, arguments.steps)
    if not strategy.is_chief:
        return
    weights = [np.asarray(weight) for weight in model.get_weights()]
    accuracy = float(np.mean(forward(weights, test_images).argmax(axis=1) == test_labels))
    sent = 4 * sum(weight.size for weight in weights) * arguments.steps  # the gradients of each step
    if arguments.strategy != "mirrored":
        sent = strategy.bytes_exchanged
    print(f"{strategy!r}: {arguments.steps} steps on {arguments.data}")
    print(f"RESULT accuracy {accuracy:.4f}")
    print(f"RESULT bytes_sent {sent}")
    print(f"RESULT seconds {seconds:.2f}")


def forward(weights, images):
    """Returns the logits of the network; it needs no other worker."""
    hidden = images
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        hidden = np.maximum(hidden @ kernel + bias, 0)
    return hidden @ weights[-2] + weights[-1]


if __name__ == "__main__":
    main()
