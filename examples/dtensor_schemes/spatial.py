"""Spatial parallelism: every device has some rows of pixels of every image, for images too large for one device.

    python examples/dtensor_schemes/spatial.py

A 3 x 3 convolution needs a row of pixels from either neighbour: the halo. Devices send it with collective-permutes.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from scheme import Parameter, Scheme, compare

from replicax.dtensor import UNSHARDED

BATCH, SIZE, CHANNELS, FILTERS, OUTPUTS = 8, 32, 3, 16, 4
ROWS = PartitionSpec(None, "height")

# Written as an ordinary convolution of the whole images this works as well: XLA's partitioner finds the halos. But it
# sends them once more for the gradient of the kernel: ten permutes instead of six for the two convolutions. So here
# each device's part is written down with jax.shard_map; the rows that came going forward are kept for going backward.


def convolution(mesh, images, kernel):
    return jax.shard_map(convolution_of_part, mesh=mesh.jax_mesh, in_specs=(ROWS, PartitionSpec()), out_specs=ROWS)(
        images, kernel
    )


def convolution_of_part(images, kernel):
    devices = jax.lax.axis_size("height")
    send = functools.partial(jax.lax.ppermute, axis_name="height")
    # Nobody sends to the first and the last device: they receive zeros, which is the padding that they need.
    above = send(images[:, -1:], perm=[(i, i + 1) for i in range(devices - 1)])
    below = send(images[:, :1], perm=[(i + 1, i) for i in range(devices - 1)])
    return jax.lax.conv_general_dilated(
        jnp.concatenate([above, images, below], axis=1),
        kernel,
        window_strides=(1, 1),
        padding=[(0, 0), (1, 1)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def loss(mesh, parameters, images, target):
    hidden = jax.nn.relu(convolution(mesh, images, parameters["kernel1"].value))
    hidden = jax.nn.relu(convolution(mesh, hidden, parameters["kernel2"].value))
    features = hidden.mean(axis=(1, 2))  # over all pixels: one small all-reduce
    return jnp.mean((features @ parameters["dense"] - target) ** 2)


def make_batch(random):
    images = random.normal(size=(BATCH, SIZE, SIZE, CHANNELS)).astype("float32")
    return images, random.normal(size=(BATCH, OUTPUTS)).astype("float32")


SCHEME = Scheme(
    name="spatial parallel",
    mesh_dims={"height": 8},
    parameters={
        "kernel1": Parameter((3, 3, CHANNELS, FILTERS), [UNSHARDED] * 4, stddev=(9 * CHANNELS) ** -0.5),
        "kernel2": Parameter((3, 3, FILTERS, FILTERS), [UNSHARDED] * 4, stddev=(9 * FILTERS) ** -0.5),
        "dense": Parameter((FILTERS, OUTPUTS), [UNSHARDED, UNSHARDED], stddev=FILTERS**-0.5),
    },
    batch_specs=[[UNSHARDED, "height", UNSHARDED, UNSHARDED], [UNSHARDED, UNSHARDED]],
    make_batch=make_batch,
    loss=loss,
)

if __name__ == "__main__":
    print(compare(SCHEME))
