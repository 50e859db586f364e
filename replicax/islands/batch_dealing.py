"""Dealing: which batches of a dataset an island trains on. Whole batches go round, as cards do."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import jax

from replicax.data import AutoShardPolicy, FileSource, InputOptions
from replicax.data.shards import takes_a_hint
from replicax.data.sources import HostBatches, host_batches
from replicax.errors import ArgumentError
from replicax.typing import PyTree


class DealtBatches:
    """Every `hands`-th batch of a dataset, from number `hand` on."""

    def __init__(self, batches: HostBatches, hand: int, hands: int):
        self._batches, self._hand, self._hands = batches, hand, hands

    def __iter__(self) -> Iterator[PyTree]:
        return itertools.islice(iter(self._batches), self._hand, None, self._hands)

    def __len__(self) -> int:
        return max(0, -(-(len(self._batches) - self._hand) // self._hands))


def dealt(
    source: PyTree, options: InputOptions, batch_size: int | None, hand: int, hands: int
) -> tuple[PyTree, int | None]:
    """Returns what island `hand` of `hands` reads of a dataset, and the batch size that is still to apply to it."""
    policy = options.auto_shard_policy
    if hands == 1 or policy is AutoShardPolicy.OFF:
        return source, batch_size
    if isinstance(source, FileSource) and policy in (AutoShardPolicy.AUTO, AutoShardPolicy.FILE):
        if len(source.files) < hands:
            raise ArgumentError(
                f"{len(source.files)} files cannot be dealt to {hands} islands. Write more files, or give "
                "auto_shard_policy='data'."
            )
        return source.part(hand, hands), batch_size
    if policy is AutoShardPolicy.HINT:
        if not takes_a_hint(source):
            raise ArgumentError(
                "auto_shard_policy='hint' is for a dataset with a method `shard(num_shards, index)`, got "
                f"{source!r:.80}."
            )
        return source.shard(hands, hand) if hasattr(source, "shard") else source[hand::hands], batch_size
    return DealtBatches(host_batches(source, batch_size), hand, hands), None


def dealt_options(options: InputOptions) -> InputOptions:
    """Returns the options with which an island reads its part."""
    return dataclasses.replace(options, auto_shard_policy=AutoShardPolicy.AUTO)


def dealt_rows(data: PyTree, hand: int, hands: int) -> PyTree:
    """Returns an island's rows of arrays: every `hands`-th one."""
    return jax.tree_util.tree_map(lambda array: array[hand::hands], data)
