"""Data parallelism: every device has all parameters and an eighth of the batch.

    python examples/dtensor_schemes/data_parallel.py

A device computes the gradients of its rows; their sum over devices is the gradient of the batch. One all-reduce of all
gradients (and the loss) is all that a step sends: XLA joins them.
"""

from __future__ import annotations

import jax
from scheme import Parameter, Scheme, compare, cross_entropy

from replicax.dtensor import UNSHARDED

BATCH, PIXELS, HIDDEN, CLASSES = 128, 64, 128, 10


def loss(mesh, parameters, images, labels):
    hidden = jax.nn.relu(images @ parameters["w1"] + parameters["b1"])
    return cross_entropy(hidden @ parameters["w2"] + parameters["b2"], labels)


def make_batch(random):
    labels = random.integers(0, CLASSES, BATCH)
    prototypes = random.normal(size=(CLASSES, PIXELS))
    images = prototypes[labels] + random.normal(size=(BATCH, PIXELS))
    return images.astype("float32"), labels.astype("int32")


SCHEME = Scheme(
    name="data parallel",
    mesh_dims={"batch": 8},
    parameters={
        "w1": Parameter((PIXELS, HIDDEN), [UNSHARDED, UNSHARDED], stddev=PIXELS**-0.5),
        "b1": Parameter((HIDDEN,), [UNSHARDED]),
        "w2": Parameter((HIDDEN, CLASSES), [UNSHARDED, UNSHARDED], stddev=HIDDEN**-0.5),
        "b2": Parameter((CLASSES,), [UNSHARDED]),
    },
    batch_specs=[["batch", UNSHARDED], ["batch"]],
    make_batch=make_batch,
    loss=loss,
)

if __name__ == "__main__":
    print(compare(SCHEME))
