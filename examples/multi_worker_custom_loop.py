"""A custom training loop on several workers, each a process with devices of its own.

    replicax run --workers 3 examples/multi_worker_custom_loop.py

The launcher tells each worker who it is (TF_CONFIG), as Kubernetes, Slurm or you would on several machines. Run alone,
the same script trains on one worker. At the end all workers compare their parameters bit by bit, and the chief repeats
the training on one device.
"""

from __future__ import annotations

import argparse
import os
import zlib

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras
import numpy as np
from sklearn.datasets import load_digits

import replicax as rx

BATCH = 120  # the global batch size: rows that all workers together process in one step


def digits():
    """Returns images and labels to train on; every worker reads the same."""
    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(labels))
    return (images[shuffled] / 16).astype("float32"), labels[shuffled].astype("int32")


def train(strategy, data, epochs):
    """Returns the model, and the loss and accuracy of each epoch."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128, "tanh"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.Adam(3e-3)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def train_step(batch):  # one replica's view
        x, y = batch

        def loss_fn():
            logits = model(x, training=True)
            accuracy.update_state(y, logits)
            return rx.compute_average_loss(per_example(y, logits), global_batch_size=BATCH)

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @rx.function
    def step(batch):
        return strategy.reduce("sum", strategy.run(train_step, args=(batch,)), axis=None)

    dataset = strategy.distribute_dataset(data, batch_size=BATCH)  # each worker places the rows of its own devices
    results = []
    for _ in range(epochs):
        losses = [step(batch) for batch in dataset]  # the last batch has 117 rows, and all of them count
        results.append((float(np.mean([float(loss) for loss in losses])), float(accuracy.result())))
        accuracy.reset_state()
    return model, results


def digests_of_workers(strategy, model):
    """Returns a checksum of the parameters of each replica."""
    parameters = b"".join(np.asarray(variable).tobytes() for variable in model.trainable_variables)
    digest = np.uint32(zlib.crc32(parameters))
    values = strategy.distribute_values_from_function(lambda context: jnp.asarray(digest)[None])
    return np.asarray(strategy.gather(values))


def difference(model, alone):
    """Returns the largest relative difference of a parameter, in norm."""
    pairs = zip(model.trainable_variables, alone.trainable_variables, strict=True)
    return max(np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b)) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    strategy = rx.MultiWorkerMirroredStrategy()  # first of all: here the workers find each other
    data = digits()
    model, results = train(strategy, data, args.epochs)
    digests = digests_of_workers(strategy, model)
    assert len(set(digests.tolist())) == 1, f"The workers have different parameters: {digests}"
    if strategy.is_chief:  # the others would print the same
        for epoch, (loss, accuracy) in enumerate(results):
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}")
        print(
            f"bit-identical parameters on {strategy.num_workers} worker(s), {strategy.num_replicas_in_sync} replica(s)"
        )
        alone, _ = train(rx.OneDeviceStrategy(jax.local_devices()[0]), data, args.epochs)
        print(f"RESULT multi_worker_accuracy {results[-1][1]:.4f}")
        print(f"RESULT multi_worker_difference {difference(model, alone):.1e}")


if __name__ == "__main__":
    main()
