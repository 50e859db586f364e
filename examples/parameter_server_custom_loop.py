"""An asynchronous custom loop: servers keep the variables, and each worker computes on its own data.

    replicax run --ps 2 --workers 3 examples/parameter_server_custom_loop.py
    replicax run --ps 2 --workers 3 examples/parameter_server_custom_loop.py --data mnist --data-dir DIR

The script runs once, as the coordinator, and schedules steps. Workers do not wait for each other, so a gradient may be
of variables that are a few updates old; `--max-staleness` limits how many. The same model is then trained on one
device, with as many steps, and the test accuracies are compared: they differ by less than 0.01. At last it is trained
with `max_staleness=0`, one step after the other, and the parameters are compared: they are those of one device.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np
from sklearn.datasets import load_digits

import replicax as rx

BATCH = 48  # rows of a step
EXACT_STEPS = 30


def digits():
    """Returns images and labels to train on, and images and labels to test on."""
    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[shuffled] / 16).astype("float32"), labels[shuffled].astype("int32")
    return images[:1200], labels[:1200], images[1200:], labels[1200:]


def mnist(folder):
    def read(name, header):  # after a header of so many bytes come the values, one byte each
        return np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8, offset=header)

    def images(part):
        return read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype("float32") / 255

    def labels(part):
        return read(f"{part}-labels-idx1-ubyte.gz", 8).astype("int32")

    return images("train"), labels("train"), images("t10k"), labels("t10k")


def batches(x, y, seed):
    """Yields batches without end, in another order in each pass."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(y))
        for begin in range(0, len(y) - BATCH + 1, BATCH):
            rows = order[begin : begin + BATCH]
            yield x[rows], y[rows]


def worker_batches(x, y):
    """What each worker calls to make its dataset: an order of its own."""
    return batches(x, y, seed=rx.coordinator.get_current_worker_index())


def make_training(strategy, inputs, steps):
    """Returns a model, a metric, and the step that trains the one and counts in the other."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(128, "tanh"), keras.layers.Dense(10)])
        # Without momentum, and with smaller and smaller steps, it matters little how old a gradient is.
        optimizer = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.05, steps))
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train_step(batch):
        x, y = batch

        def loss_fn():
            logits = model(x, training=True)
            accuracy.update_state(y, logits)
            return rx.compute_average_loss(per_example(y, logits), global_batch_size=BATCH)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return model, accuracy, train_step


def print_epoch(epoch, losses, accuracy):
    print(f"epoch {epoch}: loss {np.mean(losses):.4f}, accuracy {float(accuracy.result()):.4f}")
    accuracy.reset_state()


def train_asynchronously(strategy, data, epochs, steps):
    """Trains on the workers; returns the accuracy on the rows to test on."""
    train_x, train_y, test_x, test_y = data
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    model, accuracy, train_step = make_training(strategy, train_x.shape[1], epochs * steps)

    @rx.function
    def step(iterator):
        return strategy.run(train_step, args=(next(iterator),))  # the next batch of the worker that runs it

    @rx.function
    def predict(x):
        return model(x, training=False)

    dataset_fn = functools.partial(worker_batches, train_x, train_y)
    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    for epoch in range(epochs):
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps)]  # returns at once
        coordinator.join()
        print_epoch(epoch, coordinator.fetch(losses), accuracy)

    stats = coordinator.stats()
    print(f"{stats.steps} steps, by worker {[worker.steps for worker in stats.workers]}, in {stats.seconds:.1f} s")
    print("updates that were so many others behind:", ", ".join(f"{k}: {n}" for k, n in stats.staleness.items()))
    logits = coordinator.schedule(predict, args=(test_x,)).fetch()
    return np.mean(logits.argmax(axis=-1) == test_y)


def train_alone(data, epochs, steps):
    """Trains as often on one device; returns the accuracy on the rows to test on."""
    train_x, train_y, test_x, test_y = data
    strategy = rx.OneDeviceStrategy(jax.local_devices()[0])
    model, accuracy, train_step = make_training(strategy, train_x.shape[1], epochs * steps)
    step = rx.function(lambda batch: strategy.run(train_step, args=(batch,)))
    stream = batches(train_x, train_y, seed=0)
    for epoch in range(epochs):
        print_epoch(epoch, [float(step(next(stream))) for _ in range(steps)], accuracy)
    return np.mean(np.asarray(model(test_x)).argmax(axis=-1) == test_y)


def exact_difference(strategy, data):
    """Makes the same steps in the same order, here and on workers without staleness.

    Returns the largest relative difference of a parameter tensor, in norm.
    """
    train_x, train_y, _, _ = data
    stream = batches(train_x, train_y, seed=0)
    sequence = [next(stream) for _ in range(EXACT_STEPS)]

    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    model, _, train_step = make_training(strategy, train_x.shape[1], EXACT_STEPS)
    step = rx.function(train_step)
    for batch in sequence:  # an argument, not the next batch of whoever runs it: so the order is fixed
        coordinator.schedule(step, args=(batch,))
    coordinator.join()

    one_device = rx.OneDeviceStrategy(jax.local_devices()[0])
    alone, _, train_step = make_training(one_device, train_x.shape[1], EXACT_STEPS)
    step = rx.function(train_step)
    for batch in sequence:
        step(batch)
    pairs = zip(model.trainable_variables, alone.trainable_variables, strict=True)
    return max(np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b)) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--data-dir", type=Path, default=Path("."))
    parser.add_argument("--epochs", type=int, help="40 by default, 2 with mnist")
    parser.add_argument("--max-staleness", type=int, help="by how many updates variables may be behind; any number")
    args = parser.parse_args()
    data = digits() if args.data == "digits" else mnist(args.data_dir)
    epochs = args.epochs or (40 if args.data == "digits" else 2)
    steps = len(data[1]) // BATCH

    with rx.ParameterServerStrategy(max_staleness=args.max_staleness) as strategy:
        print(f"{args.data}: {len(data[1])} rows; {strategy}")
        accuracy = train_asynchronously(strategy, data, epochs, steps)
    print("the same on one device, in step:")
    accuracy_alone = train_alone(data, epochs, steps)
    with rx.ParameterServerStrategy(max_staleness=0) as strategy:
        difference = exact_difference(strategy, data)
    print(f"RESULT ps_test_accuracy {accuracy:.4f}")
    print(f"RESULT ps_sync_accuracy {accuracy_alone:.4f}")
    print(f"RESULT ps_exact_difference {difference:.1e}")


if __name__ == "__main__":
    main()
