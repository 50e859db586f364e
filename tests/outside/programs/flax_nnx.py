"""A classifier in flax's newer style: an nnx module and optimizer, split into a graph and a state for each step.

After https://flax.readthedocs.io/en/latest/mnist_tutorial.html and
https://flax.readthedocs.io/en/latest/guides/performance.html: the functional form, `nnx.split` outside and `nnx.merge`
in the step.
"""

from __future__ import annotations

import jax
import optax
from flax import nnx
from sklearn.datasets import load_digits

import replicax as rx  # +

BATCH = 40
strategy = rx.MirroredStrategy()  # +


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.norm = nnx.LayerNorm(32, rngs=rngs)
        self.out = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.gelu(self.norm(self.hidden(x))))


def loss_fn(model, x, y):
    losses = optax.softmax_cross_entropy_with_integer_labels(model(x), y)
    # - return losses.mean()
    return rx.compute_average_loss(losses)  # +


def main():
    x, y = load_digits(return_X_y=True)
    x, y = (x[:250] / 16).astype("float32"), y[:250]
    model = Classifier(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))

    @jax.jit
    def train_step(state, x, y):
        model, optimizer = nnx.merge(graph, state)
        loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    state = strategy.replicate(state)  # +
    losses = []
    # - for rows, labels in batches:
    for rows, labels in strategy.distribute_dataset(batches):  # +
        # - state, loss = train_step(state, rows, labels)
        state, loss = strategy.run(train_step, args=(state, rows, labels))  # +
        # - losses.append(loss)
        losses.append(strategy.reduce("sum", loss, axis=None))  # +
    nnx.update((model, optimizer), state)
    return jax.tree.leaves(nnx.to_pure_dict(nnx.state(model))), losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
