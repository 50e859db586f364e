"""JAX by hand, with optax."""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

SIZES = (784, 700, 500, 10)
rng = np.random.default_rng(0)
params = [
    (rng.normal(0, m**-0.5, (m, n)).astype(np.float32), np.zeros(n, np.float32)) for m, n in itertools.pairwise(SIZES)
]
optimizer = optax.adam(1e-3)


def loss_fn(params, x, y):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(x @ w + b, y))


@jax.jit
def step(params, state, x, y):
    loss, gradients = jax.value_and_grad(loss_fn)(params, x, y)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(params, updates), state, loss


x, y = np.ones((128, 784), np.float32), np.zeros(128, np.int32)
jax.block_until_ready(step(params, optimizer.init(params), x, y))
print(time.time())
