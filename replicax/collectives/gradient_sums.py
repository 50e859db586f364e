"""The sums of the replicas' gradients: where it is decided what is compressed, packed, scattered or summed as it is.

Whoever has gradients of a replica comes here, inside of `jax.shard_map`:

* `rx.value_and_grad`, of a whole batch or of added up micro-batches, in one program or in one that is cut: `combined`,
  and with a memory of what was left out before, `remembering`.
* Plain `jax.grad`. JAX writes its sums into the program of a replica, which is evaluated with `sums_together`.
* Programs on sharded variables, of whose gradients a replica needs its shard only: `shard_of_sum`.
* `fit`, whose gradients are of both kinds: `summed_or_scattered`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from replicax.collectives.automatic import AutomaticAllReduce, automatic
from replicax.collectives.compression import Compression, Memory, Reducing, computing_dtype, is_of_gradients
from replicax.collectives.cross_device_ops import CrossDeviceOps
from replicax.collectives.options import CommunicationOptions
from replicax.compat.jax_primitives import assert_equal_over_axis
from replicax.contracts.reduce_op import ReduceOp
from replicax.runtime.mesh import REPLICA_AXIS


def combined(
    ops: CrossDeviceOps, options: CommunicationOptions, op: ReduceOp, arrays: Sequence[jax.Array]
) -> list[jax.Array]:
    """Combines each array, which varies over the replicas, with those of the others. It can be differentiated."""
    replicas = jax.lax.axis_size(REPLICA_AXIS)
    if replicas == 1:
        return [assert_equal_over_axis(array, REPLICA_AXIS) for array in arrays]
    compression = options.compression
    if not is_of_gradients(compression):
        return ops.all_reduce(op, list(arrays), axis_name=REPLICA_AXIS, num_replicas=replicas, options=options)

    @jax.custom_jvp
    def compressed(arrays: list[jax.Array]) -> list[jax.Array]:
        return remembering(ops, options, compression, op, arrays, [{} for _ in arrays])[0]

    # A sum is linear, so tangents take the exact sum: the derivative of the rounding would be zero.
    @compressed.defjvp
    def compressed_jvp(
        primals: tuple[list[jax.Array]], wrapped: tuple[list[jax.Array]]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        [arrays], [tangents] = primals, wrapped
        floating = [i for i, tangent in enumerate(tangents) if tangent.dtype != jax.dtypes.float0]
        sums = combined(ops, _exact(options), op, [tangents[i] for i in floating])
        results = list(tangents)  # Those of integers hold nothing.
        for i, total in zip(floating, sums, strict=True):
            results[i] = total
        return compressed(arrays), results

    return compressed(list(arrays))


def remembering(
    ops: CrossDeviceOps,
    options: CommunicationOptions,  # for what is not compressed
    compression: Compression,
    op: ReduceOp,
    arrays: Sequence[jax.Array],
    memory: Sequence[Memory],  # of each array, by name; nothing where there is no memory
) -> tuple[list[jax.Array], list[Memory]]:
    """Combines arrays of several replicas in fewer bytes; returns the new memory, too."""
    replicas = jax.lax.axis_size(REPLICA_AXIS)
    exact = functools.partial(combined, ops, _exact(options))
    how = Reducing(REPLICA_AXIS, replicas, options.bytes_per_pack, functools.partial(exact, ReduceOp.SUM))
    chosen = [i for i, array in enumerate(arrays) if compression.compresses(array.shape, array.dtype)]
    others = [i for i in range(len(arrays)) if i not in set(chosen)]
    found = dict(zip(others, exact(op, [arrays[i] for i in others]), strict=True))
    outgoing = [arrays[i].astype(computing_dtype(arrays[i].dtype)) for i in chosen]
    sums, new = compression.sums(outgoing, [memory[i] for i in chosen], how)
    for i, total in zip(chosen, sums, strict=True):
        found[i] = (total if op is ReduceOp.SUM else total / replicas).astype(arrays[i].dtype)
    results = [found[i] for i in range(len(arrays))]
    renewed = dict(zip(chosen, new, strict=True))
    return results, _unless_not_finite(results, memory, [renewed.get(i, {}) for i in range(len(arrays))])


def sums_together(
    ops: CrossDeviceOps, options: CommunicationOptions
) -> Callable[[list[jax.Array]], list[jax.Array]] | None:
    """Returns what sums values in packs; None where each is to be summed by itself, as JAX writes it."""
    # Only between CPU processes, and where the user has not chosen an algorithm, is it worth its copies.
    joins = isinstance(ops, AutomaticAllReduce) and ops.gathers
    return functools.partial(combined, ops, _exact(options), ReduceOp.SUM) if joins else None


def summed_or_scattered(arrays: Sequence[jax.Array], dimensions: Sequence[int | None]) -> list[jax.Array]:
    """Returns the sums over the replicas; of an array with a dimension, this replica's shard."""
    whole = [array for array, dimension in zip(arrays, dimensions, strict=True) if dimension is None]
    sums = iter(combined(automatic(), CommunicationOptions(), ReduceOp.SUM, whole))
    return [
        next(sums) if dimension is None else shard_of_sum(array, dimension)
        for array, dimension in zip(arrays, dimensions, strict=True)
    ]


def shard_of_sum(array: jax.Array, dimension: int) -> jax.Array:
    """Returns this replica's shard, along a dimension, of the sum over the replicas: a reduce-scatter."""
    shard: jax.Array = jax.lax.psum_scatter(array, REPLICA_AXIS, scatter_dimension=dimension, tiled=True)
    return shard


def _exact(options: CommunicationOptions) -> CommunicationOptions:
    return dataclasses.replace(options, compression=None)


def _unless_not_finite(results: Sequence[jax.Array], old: Sequence[Memory], new: Sequence[Memory]) -> list[Memory]:
    """Returns the new memory, or the old one if a combined array holds NaN or infinity."""
    # Such a step is skipped where a loss is scaled. The arrays are equal on all replicas, so all replicas decide alike.
    if not any(new):
        return list(new)
    is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(each)) for each in results]))
    return [
        {name: jnp.where(is_finite, value, before[name]) for name, value in after.items()}
        for before, after in zip(old, new, strict=True)
    ]
