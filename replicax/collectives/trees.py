"""Binary trees of point-to-point sends: sums towards the heads of groups of replicas, and copies back from them.

A group is a list of replica numbers, its head first; the groups have no replica in common. All groups work at the same
time, and a round doubles the distance, so that a group of `n` takes `ceil(log2(n))` rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

Groups = Sequence[Sequence[int]]
Sends = list[tuple[int, int]]


def sum_to_heads(buffer: jax.Array, groups: Groups, axis_name: str) -> jax.Array:
    """Returns on the head of each group the sum over the group; on other replicas a partial sum without meaning."""
    for sends in _sum_rounds(groups):
        # A device that receives nothing gets zeros.
        buffer = buffer + jax.lax.ppermute(buffer, axis_name, sends)
    return buffer


def copy_from_heads(buffer: jax.Array, groups: Groups, axis_name: str) -> jax.Array:
    """Returns on every replica of a group the array of the group's head; on replicas in no group their own."""
    for sends in _copy_rounds(groups):
        incoming = jax.lax.ppermute(buffer, axis_name, sends)
        # Chosen, not added: a copy must keep every bit, also those of NaN and -0.0.
        buffer = jnp.where(_is_receiver(sends, axis_name), incoming, buffer)
    return buffer


def _sum_rounds(groups: Groups) -> Iterator[Sends]:
    for sends in reversed(list(_copy_rounds(groups))):
        yield [(target, source) for source, target in sends]


def _copy_rounds(groups: Groups) -> Iterator[Sends]:
    """Yields who sends to whom: in each round every replica that has the head's array sends it `distance` on."""
    distance = 1
    while distance < max(map(len, groups)):
        yield [pair for group in groups for pair in zip(group[:distance], group[distance : 2 * distance], strict=False)]
        distance *= 2


def _is_receiver(sends: Sends, axis_name: str) -> jax.Array:
    table = np.zeros(jax.lax.axis_size(axis_name), bool)
    table[[target for _, target in sends]] = True
    return jnp.asarray(table)[jax.lax.axis_index(axis_name)]
