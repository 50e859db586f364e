"""The optax loop under our strategy."""

import itertools
import time

import jax
import numpy as np
import optax

import replicax as rx

SIZES = (784, 700, 500, 10)
rng = np.random.default_rng(0)
params = [
    (rng.normal(0, m**-0.5, (m, n)).astype(np.float32), np.zeros(n, np.float32)) for m, n in itertools.pairwise(SIZES)
]
optimizer = optax.adam(1e-3)
strategy = rx.MirroredStrategy()


def loss_fn(params, x, y):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    each = optax.softmax_cross_entropy_with_integer_labels(x @ w + b, y)
    return rx.compute_average_loss(each, global_batch_size=128)


def replica_step(state, batch):
    params, opt_state = state
    loss, gradients = jax.value_and_grad(loss_fn)(params, *batch)
    updates, opt_state = optimizer.update(gradients, opt_state)
    return (optax.apply_updates(params, updates), opt_state), loss


@rx.function
def step(state, batch):
    state, loss = strategy.run(replica_step, args=(state, batch))
    return state, strategy.reduce("sum", loss)


state = strategy.replicate((params, optimizer.init(params)))
(batch,) = strategy.distribute_dataset([(np.ones((128, 784), np.float32), np.zeros(128, np.int32))])
jax.block_until_ready(step(state, batch))
print(time.time())
