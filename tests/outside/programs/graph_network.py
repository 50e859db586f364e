"""A graph network: is a molecule-like graph connected by a ring?

After https://github.com/google/flax/blob/main/examples/ogbg_molpcba/models.py and
https://github.com/google-deepmind/jraph: graphs of different sizes are padded to one, messages go along edges with
`segment_sum`, a masked mean reads the graph out. The training state is a frozen dataclass, as in flax.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx  # +

NODES, EDGES, WIDTH, ROUNDS, BATCH = 8, 16, 12, 2, 24
strategy = rx.MirroredStrategy()  # +
tx = optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(5e-3))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    step: jax.Array
    params: Any
    opt_state: Any

    def apply_gradients(self, grads):
        updates, opt_state = tx.update(grads, self.opt_state, self.params)
        return TrainState(self.step + 1, optax.apply_updates(self.params, updates), opt_state)


def graphs(count):
    """A dict of padded graphs: features of nodes, senders and receivers of edges, masks and labels."""
    rng = np.random.default_rng(0)
    nodes = rng.integers(4, NODES + 1, count)
    ring = rng.integers(0, 2, count)
    edges = np.full((2, count, EDGES), NODES - 1)
    for g, (size, closed) in enumerate(zip(nodes, ring, strict=True)):
        chain = [(i, i + 1) for i in range(size - 1)] + ([(size - 1, 0)] if closed else [])
        both = np.array(chain + [(b, a) for a, b in chain])
        edges[:, g, : len(both)] = both.T
    mask = np.arange(NODES) < nodes[:, None]
    degree = np.stack([np.bincount(edges[0, g], minlength=NODES) for g in range(count)])
    features = np.stack([mask, mask * degree, mask * rng.normal(size=mask.shape)], axis=-1).astype("float32")
    return {"x": features, "senders": edges[0], "receivers": edges[1], "mask": mask, "label": ring}


def init_params(key):
    keys = iter(jax.random.split(key, 2 * ROUNDS + 2))

    def dense(n, m):
        return {"w": jax.random.normal(next(keys), (n, m)) / n**0.5, "b": jnp.zeros(m)}

    rounds = [{"message": dense(WIDTH, WIDTH), "update": dense(2 * WIDTH, WIDTH)} for _ in range(ROUNDS)]
    return {"embed": dense(3, WIDTH), "rounds": rounds, "read": dense(WIDTH, 1)}


def apply(params, graph):
    def dense(layer, x):
        return x @ layer["w"] + layer["b"]

    x = dense(params["embed"], graph["x"])
    for layer in params["rounds"]:
        messages = jax.nn.gelu(dense(layer["message"], x[graph["senders"]]))
        received = jax.ops.segment_sum(messages, graph["receivers"], num_segments=NODES)
        x = x + jax.nn.gelu(dense(layer["update"], jnp.concatenate([x, received], axis=-1)))
    return dense(params["read"], jnp.sum(x * graph["mask"][:, None], axis=0) / jnp.sum(graph["mask"]))[0]


@jax.jit
def train_step(state, batch):
    def loss_fn(params):
        logits = jax.vmap(apply, in_axes=(None, 0))(params, batch)
        # - return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, batch["label"]))
        return rx.compute_average_loss(optax.sigmoid_binary_cross_entropy(logits, batch["label"]))  # +

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads), loss


def main():
    params = init_params(jax.random.key(0))
    state = TrainState(jnp.zeros((), jnp.int32), params, tx.init(params))
    table = graphs(156)
    batches = [jax.tree.map(lambda column, i=i: column[i : i + BATCH], table) for i in range(0, 156, BATCH)]
    state = strategy.replicate(state)  # +
    losses = []
    for _ in range(2):
        # - for batch in batches:
        for batch in strategy.distribute_dataset(batches):  # +
            # - state, loss = train_step(state, batch)
            state, loss = strategy.run(train_step, args=(state, batch))  # +
            # - losses.append(loss)
            losses.append(strategy.reduce("sum", loss, axis=None))  # +
    return state, losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
