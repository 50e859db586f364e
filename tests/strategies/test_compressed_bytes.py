"""What compressed gradients take on the wire, counted from the compiled step."""

from __future__ import annotations

import numpy as np
import pytest

import replicax as rx
from replicax.collectives.hlo import collectives
from tests.strategies.compressed import Mlp, compressed

WIDTHS = (784, 700, 500, 10)
ELEMENTS = 784 * 700 + 700 * 500 + 500 * 10 + 700 + 500 + 10


def bytes_sent(strategy: rx.Strategy) -> float:
    """Returns the bytes that each replica sends in a step, in a ring: an all-reduce goes round twice."""
    mlp, replicas = Mlp(strategy, WIDTHS), strategy.num_replicas_in_sync
    [batch] = strategy.distribute_dataset([(np.ones((16, 784), "float32"), np.zeros(16, "int32"))])
    found = collectives(mlp.step.lower(batch).compile().as_text())
    once = sum(each.num_bytes * (2 if each.kind == "all-reduce" else 1) for each in found)
    return once * (replicas - 1) / replicas


@pytest.mark.daily(2)
@pytest.mark.parametrize("replicas", [2, 8])
@pytest.mark.parametrize(("compression", "expected"), [(None, 1.0), ("int8", 0.255), ("powersgd", 0.0155)], ids=str)
def test_the_bytes_of_a_step(replicas, compression, expected):
    """Int8 takes a byte for each number, 4 for each 256 of them, and all of the biases, which have 700 at most."""
    of_all_reduce = 2 * (replicas - 1) / replicas * 4 * ELEMENTS
    assert bytes_sent(compressed(compression, replicas)) / of_all_reduce == pytest.approx(expected, rel=0.01)


@pytest.mark.nightly
def test_a_sharded_update_moves_more_than_compression_saves():
    options = rx.CommunicationOptions(compression="int8")
    kept_whole = rx.MirroredStrategy(8, communication_options=options)
    assert not kept_whole.shard_update
    sharded = rx.MirroredStrategy(8, communication_options=options, shard_update=True)
    assert bytes_sent(sharded) > 2 * bytes_sent(kept_whole)
