"""Buckets that leave in turn: gradients of the last layers travel while those of the first are still computed.

A backward pass finishes the gradients of the last layers first, so that is the order in which buckets leave. Three
things would undo it on CPUs, and `in_turn` prevents two of them. XLA's scheduler orders a program for little memory: it
may send the first layers' bucket first, for which all others wait, and it lets a gradient take the place in memory of
one that has been sent, so that the backward pass waits for the wire. (The third is XLA joining all sums into one; see
`compat.xla_options`.)

The order is given by `jax.lax.optimization_barrier`, through which nothing is computed or copied. While a program runs,
a bucket still leaves when it is ready and the bucket before it has gone, and an update starts when its sum is there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax

from replicax.runtime.packing import Packing


def last_first(packing: Packing) -> Packing:
    """Returns the same packs in the order in which a backward pass finishes them.

    A pack is finished with the first of its arrays, since variables come in the order of the layers.

    Example:
        >>> last_first(Packing(packs=((0,), (2,), (1, 3)), shapes=((2, 2), (2,), (2, 2), (2,)))).packs
        ((2,), (1, 3), (0,))
    """
    return dataclasses.replace(packing, packs=tuple(sorted(packing.packs, key=min, reverse=True)))


def in_turn(buffers: list[jax.Array], total: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
    """Sums buffers one after the other, in their order, each as soon as it is there.

    Args:
        buffers: Arrays of any shapes and dtypes, those that are finished first in front.
        total: Sums one of them over the replicas.

    Returns:
        The sums, in the same order.
    """
    if len(buffers) < 2:
        return [total(buffer) for buffer in buffers]
    sums: list[jax.Array] = []
    for buffer in buffers:
        if sums:
            # With the last one all are held until it leaves: none takes the place in memory of another.
            held = buffers[:-1] if buffer is buffers[-1] else []
            buffer = jax.lax.optimization_barrier((buffer, sums[-1], *held))[0]
        sums.append(total(buffer))
    # The updates come after all sums in the schedule: of what is ready at once, the next bucket goes first.
    return list(jax.lax.optimization_barrier(sums))
