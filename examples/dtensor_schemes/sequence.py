"""Sequence parallelism: every device has an eighth of each text, for attention over long ones.

    python examples/dtensor_schemes/sequence.py

Attention needs all keys and values of a text, but its heads have nothing to do with each other. So, after Jacobs et
al., "DeepSpeed Ulysses" (2023), the cut moves from the positions to the heads and back, by relayouts. Each is an
all-to-all: a device sends an eighth of what it holds to each other device.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from scheme import Parameter, Scheme, compare

from replicax.dtensor import UNSHARDED, Layout, relayout

BATCH, LENGTH, WIDTH, HEADS = 2, 128, 64, 8
HEAD = WIDTH // HEADS

# Left to itself XLA's partitioner gathers all keys and all values on every device, and sums their gradients by
# all-reduces. That sends six times as much on eight devices; and the difference grows with their number.


def attention(mesh, x, kernel):
    # Queries, keys and values stand in one array, so that one all-to-all moves all three.
    qkv = jnp.einsum("btd,dxhe->btxhe", x, kernel)
    # Saying where the value comes from is not idle: XLA would compute it by heads, from an x that it gathers first.
    qkv = relayout(qkv, Layout([UNSHARDED, "sequence", UNSHARDED, UNSHARDED, UNSHARDED], mesh))
    qkv = relayout(qkv, Layout([UNSHARDED, UNSHARDED, UNSHARDED, "sequence", UNSHARDED], mesh))
    queries, keys, values = jnp.moveaxis(qkv, 2, 0)
    scores = jnp.einsum("bqhe,bkhe->bhqk", queries, keys) * HEAD**-0.5
    heads = jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(scores), values)
    heads = relayout(heads, Layout([UNSHARDED, UNSHARDED, "sequence", UNSHARDED], mesh))
    return relayout(heads, Layout([UNSHARDED, "sequence", UNSHARDED, UNSHARDED], mesh))


def loss(mesh, parameters, x, target):
    heads = attention(mesh, x, parameters["qkv"].value)
    output = x + jnp.einsum("bthe,hed->btd", heads, parameters["output"].value)
    return jnp.mean((output - target) ** 2)


def make_batch(random):
    subject = random.normal(size=(BATCH, 1, WIDTH))  # what all words of a text have in common, to be found
    x = (subject + random.normal(size=(BATCH, LENGTH, WIDTH))).astype("float32")
    return x, (x + subject).astype("float32")


SCHEME = Scheme(
    name="sequence parallel",
    mesh_dims={"sequence": 8},
    parameters={
        "qkv": Parameter((WIDTH, 3, HEADS, HEAD), [UNSHARDED] * 4, stddev=WIDTH**-0.5),
        "output": Parameter((HEADS, HEAD, WIDTH), [UNSHARDED] * 3, stddev=WIDTH**-0.5),
    },
    batch_specs=[[UNSHARDED, "sequence", UNSHARDED], [UNSHARDED, "sequence", UNSHARDED]],
    make_batch=make_batch,
    loss=loss,
)

if __name__ == "__main__":
    print(compare(SCHEME))
