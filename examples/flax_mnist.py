"""A convolutional classifier in flax's nnx: `nnx.jit` on one device, or `strategy.run` on all of them.

After flax's MNIST example, with the small digits of scikit-learn. Two lines change.

python examples/flax_mnist.py
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import replicax as rx

BATCH = 128  # the global batch size: what all replicas process together in one step


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 16, kernel_size=(3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, kernel_size=(3, 3), rngs=rngs)
        self.hidden = nnx.Linear(2 * 2 * 32, 64, rngs=rngs)
        self.out = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.avg_pool(nnx.relu(self.conv1(x)), (2, 2), (2, 2))
        x = nnx.avg_pool(nnx.relu(self.conv2(x)), (2, 2), (2, 2))
        return self.out(nnx.relu(self.hidden(x.reshape(len(x), -1))))


def train_step(model: CNN, optimizer: nnx.Optimizer, metrics: nnx.MultiMetric, images, labels):
    def loss_fn(model: CNN):
        logits = model(images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.sum() / BATCH, (logits, losses)

    (_, (logits, losses)), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    metrics.update(loss=losses, logits=logits, labels=labels)


def train(epochs: int, strategy: rx.Strategy | None = None) -> tuple[CNN, list[dict[str, float]]]:
    """Returns the trained model, and the metrics of each epoch."""
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32").reshape(-1, 8, 8, 1), labels.astype("int32")

    model = CNN(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.05, momentum=0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    history = []
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(labels))
        rows = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]  # the last batch has five rows
        batches = [(images[some], labels[some]) for some in rows]
        if strategy is None:  # flax by itself
            step = nnx.jit(train_step)
            for batch in batches:
                step(model, optimizer, metrics, *batch)
        else:  # two lines
            for batch in strategy.distribute_dataset(batches):
                strategy.run(train_step, args=(model, optimizer, metrics, *batch))
        history.append({name: float(value) for name, value in metrics.compute().items()})
        metrics.reset()
    return model, history


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    rx.config.set_virtual_devices(8)  # only to try it without accelerators; real GPUs are used where there are some

    strategy = rx.MirroredStrategy()
    model, history = train(args.epochs, strategy)
    for epoch, metrics in enumerate(history, 1):
        print(f"epoch {epoch}: loss {metrics['loss']:.4f}, accuracy {metrics['accuracy']:.4f}")
    size = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    print(f"{size:,} parameters on {strategy.num_replicas_in_sync} replicas, {jnp.dtype(model.out.kernel.dtype)}")


if __name__ == "__main__":
    main()
