"""A sharded embedding table: every device has the rows of an eighth of the vocabulary.

    python examples/dtensor_schemes/embedding.py

A device looks up the words that it knows and counts the others as zero; the sum over devices is right for all. The
table itself never travels, and neither does its gradient: going backward each device adds to its own rows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from scheme import Parameter, Scheme, compare, cross_entropy

from replicax.dtensor import UNSHARDED

BATCH, WORDS, VOCABULARY, WIDTH, CLASSES = 32, 12, 4096, 32, 4

# `jnp.take(table, words, axis=0).sum(axis=1)` works as well: XLA's partitioner masks and sums in the same way, and does
# not gather the table. But it sums over devices first and over the words of a text then, and so sends twelve times as
# much. Here each device adds up the words of a text before it sends anything.


def bags(mesh, table, words):
    """Returns the sum of the vectors of each text's words."""
    rows, whole = PartitionSpec("vocabulary"), PartitionSpec()
    return jax.shard_map(bags_of_part, mesh=mesh.jax_mesh, in_specs=(rows, whole), out_specs=whole)(table, words)


def bags_of_part(table, words):
    own = words - jax.lax.axis_index("vocabulary") * len(table)
    known = (own >= 0) & (own < len(table))
    vectors = jnp.where(known[..., None], table[jnp.where(known, own, 0)], 0)
    return jax.lax.psum(vectors.sum(axis=1), "vocabulary")


def loss(mesh, parameters, words, labels):
    return cross_entropy(bags(mesh, parameters["table"].value, words) @ parameters["dense"], labels)


def make_batch(random):
    words = random.integers(0, VOCABULARY, (BATCH, WORDS))
    return words.astype("int32"), random.integers(0, CLASSES, BATCH).astype("int32")


SCHEME = Scheme(
    name="cut embedding",
    mesh_dims={"vocabulary": 8},
    parameters={
        "table": Parameter((VOCABULARY, WIDTH), ["vocabulary", UNSHARDED], stddev=WORDS**-0.5),
        "dense": Parameter((WIDTH, CLASSES), [UNSHARDED, UNSHARDED], stddev=WIDTH**-0.5),
    },
    batch_specs=[[UNSHARDED, UNSHARDED], [UNSHARDED]],
    make_batch=make_batch,
    loss=loss,
)

if __name__ == "__main__":
    print(compare(SCHEME))
