"""Rows and gradients travel exactly, whatever the ids are and however many rounds it takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from replicax.tables import row_optimizer
from replicax.tables.exchange import Exchange, capacity_for

REPLICAS, IDS, ROWS, COLUMNS = 8, 40, 320, 3


def ids_of(kind: str) -> np.ndarray:
    rng, count = np.random.default_rng(0), REPLICAS * IDS
    ids = {
        "even": rng.integers(0, ROWS, count),
        "the same": np.full(count, 5),
        "distinct": rng.permutation(ROWS),
        "one owner": rng.integers(0, ROWS // REPLICAS, count) + 3 * ROWS // REPLICAS,
    }[kind]
    ids[3] = ROWS  # none
    return ids.astype(np.int32)


@pytest.mark.daily(3)
@pytest.mark.parametrize("capacity", [IDS, capacity_for(IDS, REPLICAS), 8])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_look_up_and_update(capacity: int, optimizer: str):
    exchange = Exchange(IDS, ROWS // REPLICAS, REPLICAS, capacity)
    found = row_optimizer(optimizer)
    rng = np.random.default_rng(1)
    table = rng.normal(size=(ROWS, COLUMNS)).astype("float32")
    state = {"": table, **{slot.name: np.full_like(table, slot.first_value) for slot in found.slots}}
    gradients = rng.normal(size=(REPLICAS * IDS, COLUMNS)).astype("float32")

    def step(state, ids, gradients):
        route = exchange.route(ids)
        rows = exchange.look_up(state[""], route)
        return rows, exchange.update(state, route, gradients, found, jnp.asarray(1), jnp.float32(0.1))

    mesh = jax.make_mesh((REPLICAS,), ("replica",), axis_types=(jax.sharding.AxisType.Auto,))
    split = PartitionSpec("replica")
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=split, out_specs=split))
    for kind in ("even", "the same", "distinct", "one owner"):
        ids = ids_of(kind)
        rows, new = mapped(state, ids, gradients)
        known = ids < ROWS
        np.testing.assert_array_equal(np.asarray(rows)[known], table[ids[known]])
        assert np.isnan(np.asarray(rows)[~known]).all()
        sums = np.zeros_like(table)
        np.add.at(sums, ids[known], gradients[known])
        wanted, _ = found.update(table, state, sums, jnp.asarray(1), jnp.float32(0.1))
        touched = np.unique(ids[known])
        np.testing.assert_allclose(new[""][touched], wanted[touched], rtol=2e-6, atol=1e-6, err_msg=kind)
        untouched = np.setdiff1d(np.arange(ROWS), touched)
        np.testing.assert_array_equal(np.asarray(new[""])[untouched], table[untouched])
