"""Sums of gradients that are compressed, with the memory that goes from step to step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from replicax.collectives.compression import Compression, Memory, Reducing, computing_dtype
from replicax.collectives.cross_device_ops import CrossDeviceOps
from replicax.collectives.options import CommunicationOptions
from replicax.contracts.reduce_op import ReduceOp


def compressed_all_reduce(
    ops: CrossDeviceOps,
    compression: Compression,
    op: ReduceOp,
    values: Sequence[jax.Array],  # varying over the axis
    memory: Sequence[Memory],  # of each value, by name; nothing where there is no memory
    *,
    axis_name: str,
    num_replicas: int,  # at least 2
    options: CommunicationOptions,  # for what is not compressed
) -> tuple[list[jax.Array], list[Memory]]:
    """Combines each array with those of the other replicas, in fewer bytes; returns the new memory, too."""
    plain = dataclasses.replace(options, compression=None)

    def exact(op: ReduceOp, arrays: list[jax.Array]) -> list[jax.Array]:
        return ops.all_reduce(op, arrays, axis_name=axis_name, num_replicas=num_replicas, options=plain)

    how = Reducing(axis_name, num_replicas, options.bytes_per_pack, lambda arrays: exact(ReduceOp.SUM, arrays))
    chosen = [i for i, value in enumerate(values) if compression.compresses(value.shape, value.dtype)]
    others = [i for i in range(len(values)) if i not in set(chosen)]
    found = dict(zip(others, exact(op, [values[i] for i in others]), strict=True))
    outgoing = [values[i].astype(computing_dtype(values[i].dtype)) for i in chosen]
    sums, new = compression.sums(outgoing, [memory[i] for i in chosen], how)
    for i, total in zip(chosen, sums, strict=True):
        combined = total if op is ReduceOp.SUM else total / num_replicas
        found[i] = combined.astype(values[i].dtype)
    combined_values = [found[i] for i in range(len(values))]
    renewed = dict(zip(chosen, new, strict=True))
    return combined_values, _unless_not_finite(
        combined_values, memory, [renewed.get(i, {}) for i in range(len(values))]
    )


def forgetful_all_reduce(
    ops: CrossDeviceOps,
    compression: Compression,
    op: ReduceOp,
    values: Sequence[jax.Array],
    *,
    axis_name: str,
    num_replicas: int,
    options: CommunicationOptions,
) -> list[jax.Array]:
    """Combines arrays without a memory; otherwise like `compressed_all_reduce`. It can be differentiated."""
    # A sum is linear, so tangents take the exact sum: the derivative of the rounding would be zero.
    plain = dataclasses.replace(options, compression=None)

    @jax.custom_jvp
    def combined(arrays: list[jax.Array]) -> list[jax.Array]:
        nothing: list[Memory] = [{} for _ in arrays]
        return compressed_all_reduce(
            ops, compression, op, arrays, nothing, axis_name=axis_name, num_replicas=num_replicas, options=options
        )[0]

    @combined.defjvp
    def combined_jvp(
        primals: tuple[list[jax.Array]], wrapped: tuple[list[jax.Array]]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        [arrays], [tangents] = primals, wrapped
        floating = [i for i, tangent in enumerate(tangents) if tangent.dtype != jax.dtypes.float0]
        sums = ops.all_reduce(
            op, [tangents[i] for i in floating], axis_name=axis_name, num_replicas=num_replicas, options=plain
        )
        results = list(tangents)  # Those of integers hold nothing.
        for i, total in zip(floating, sums, strict=True):
            results[i] = total
        return combined(arrays), results

    return combined(list(values))


def _unless_not_finite(combined: Sequence[jax.Array], old: Sequence[Memory], new: Sequence[Memory]) -> list[Memory]:
    """Returns the new memory, or the old one if a combined array holds NaN or infinity."""
    # Such a step is skipped where a loss is scaled. The arrays are equal on all replicas, so all replicas decide alike.
    if not any(new):
        return list(new)
    is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(each)) for each in combined]))
    return [
        {name: jnp.where(is_finite, value, before[name]) for name, value in after.items()}
        for before, after in zip(old, new, strict=True)
    ]
