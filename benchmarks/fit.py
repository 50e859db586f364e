"""`Model.fit` under replicax, under `keras.distribution.DataParallel` and on one device: time of a step, and start-up.

    python benchmarks/fit.py [--devices 8] [--rounds 11] [--steps 40] [--no-startup]

The network is 784-700-500-10 with Adam, the global batch 128. Steps: all variants run in turn in one process, each turn
one call of `fit` with everything compiled; figures are medians of its time divided by its steps. Start-up: from the
first import to the end of the first step, in new processes, without and with JAX's persistent compilation cache.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

ROWS = 128
OURS, THEIRS, ALONE = "replicax", "DataParallel", "one device"

# Start-up: each program ends after its first finished step. They import what they need and nothing else.

_KERAS_FIT = """
model = keras.Sequential([
    keras.Input((784,)), keras.layers.Dense(700, "relu"), keras.layers.Dense(500, "relu"), keras.layers.Dense(10)
])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(np.ones((128, 784), "float32"), np.zeros(128, "int32"), batch_size=128, verbose=0)
"""

_INDENTED_FIT = _KERAS_FIT.replace("\nmodel = ", "\nwith rx.MirroredStrategy().scope():\n  model = ")

_REPLICAX = f"""
import keras
import numpy as np
import replicax as rx
rx.config.set_virtual_devices({{devices}})
{_INDENTED_FIT}
"""

_KERAS = f"""
import keras
import numpy as np
{_KERAS_FIT}
"""

_JAX = """
import jax
import jax.numpy as jnp
import numpy as np

sizes = (784, 700, 500, 10)
def init(key):
    keys = jax.random.split(key, 3)
    return [(jax.random.normal(k, (m, n)) * m**-0.5, jnp.zeros(n)) for k, m, n in zip(keys, sizes, sizes[1:])]

@jax.jit
def step(params, mean, square, x, y):
    def loss_fn(params):
        for w, b in params[:-1]:
            h = x = jax.nn.relu((h if "h" in locals() else x_in) @ w + b)
        return h
    return params
"""

_JAX = """
import jax
import jax.numpy as jnp
import numpy as np

sizes = (784, 700, 500, 10)

def init(key):
    keys = jax.random.split(key, 3)
    return [(jax.random.normal(k, (m, n)) * m**-0.5, jnp.zeros(n)) for k, m, n in zip(keys, sizes, sizes[1:])]

def loss_fn(params, x, y):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x @ w + b), y[:, None], 1))

def adam(w, m, v, g):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return w - 1e-3 * (m / 0.1) / (jnp.sqrt(v / 0.001) + 1e-7), m, v

@jax.jit
def step(params, m, v, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(adam, params, m, v, grads), loss

params = jax.jit(init)(jax.random.key(0))
zeros = jax.tree.map(jnp.zeros_like, params)
state = step(params, zeros, zeros, np.ones((128, 784), "float32"), np.zeros(128, "int32"))
jax.block_until_ready(state)
"""

PROGRAMS = {OURS: _REPLICAX, "Keras": _KERAS, "bare JAX": _JAX}
