"""Model parallelism: every device has all rows and an eighth of the hidden units.

    python examples/dtensor_schemes/model_parallel.py

The scheme of Shoeybi et al., "Megatron-LM" (2019). In each block of two dense layers the first kernel is cut by column
and the second by row. A device then computes some hidden units from start to end, and what it adds to the block's
output. One all-reduce sums those parts; going backward, one sums the parts of the gradient of the block's input. The
first block's input is data, which needs no gradient. No device ever sees another's weights or hidden units.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from scheme import Parameter, Scheme, compare

from replicax.dtensor import UNSHARDED

BATCH, WIDTH, HIDDEN, BLOCKS = 32, 64, 256, 2


def loss(mesh, parameters, x, target):
    for i in range(BLOCKS):
        hidden = jax.nn.gelu(x @ parameters[f"up{i}"] + parameters[f"up_bias{i}"])
        x = x + hidden @ parameters[f"down{i}"] + parameters[f"down_bias{i}"]
    return jnp.mean((x - target) ** 2)


def make_batch(random):
    x = random.normal(size=(BATCH, WIDTH)).astype("float32")
    return x, jnp.sin(x)


def block(i):
    return {
        f"up{i}": Parameter((WIDTH, HIDDEN), [UNSHARDED, "model"], stddev=WIDTH**-0.5),
        f"up_bias{i}": Parameter((HIDDEN,), ["model"]),
        f"down{i}": Parameter((HIDDEN, WIDTH), ["model", UNSHARDED], stddev=HIDDEN**-0.5),
        f"down_bias{i}": Parameter((WIDTH,), [UNSHARDED]),
    }


SCHEME = Scheme(
    name="model parallel",
    mesh_dims={"model": 8},
    parameters={name: parameter for i in range(BLOCKS) for name, parameter in block(i).items()},
    batch_specs=[[UNSHARDED, UNSHARDED], [UNSHARDED, UNSHARDED]],
    make_batch=make_batch,
    loss=loss,
)

if __name__ == "__main__":
    print(compare(SCHEME))
