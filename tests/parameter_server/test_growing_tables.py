"""Growing tables: an id gets a row at its first update, with a value of its own; rows are taken when none is free."""

from __future__ import annotations

import types

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.parameter_server.actors.growing_rows import FREE, ID, GrowingRows, GrowingShard, owners
from replicax.parameter_server.actors.messages import ShardId
from replicax.tables.marks import for_index_of
from tests.parameter_server.compiling.test_marked_tables import COLUMNS, ByHand
from tests.parameter_server.fakes import strategy_of

CAPACITY = 40
OPTIMIZERS = {"sgd": lambda: keras.optimizers.SGD(0.1), "adagrad": lambda: keras.optimizers.Adagrad(0.1)}


class Growing(ByHand):
    """A growing table, without the layer."""

    rows = CAPACITY

    def __init__(self, make_optimizer, evict="lru", capacity=CAPACITY):
        self.spec, self.rows = types.SimpleNamespace(evict=evict), capacity
        super().__init__(make_optimizer)
        index = for_index_of(self.table, keras.initializers.Constant(FREE))
        self.index = keras.Variable(index, (capacity, 4), dtype="int32", trainable=False)

    def by_id(self):
        """The rows, by the ids that have them: the table's and the slots'."""
        index = np.asarray(self.index)
        used = index[:, ID] != FREE
        return {
            int(i): [v[row] for v in self.values()]
            for i, row in zip(index[used, ID], np.flatnonzero(used), strict=True)
        }


def batch(ids, seed=0):
    ids = np.asarray(ids, np.int32)
    return ids, np.random.default_rng(seed).standard_normal((*ids.shape, COLUMNS)).astype(np.float32)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ids_have_the_rows_that_a_table_of_all_ids_would_have(fake_ray, name):
    steps = [batch([3, 10**9, 77, 3], 0), batch([2**31 - 1, 77, 5, 6], 1), batch([3, 4, 2**31 - 1, 10**9], 2)]
    ids = np.unique(np.concatenate([ids for ids, _ in steps]))
    with strategy_of(1, 2, max_staleness=0) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            growing = Growing(OPTIMIZERS[name])
        for step in steps:
            coordinator.schedule(growing.step, args=step).fetch()
        got = growing.by_id()
    assert sorted(got) == ids.tolist()
    alone = ByHand(OPTIMIZERS[name])  # The row of an id is that of its place in `ids`.
    first = np.asarray(keras.initializers.RandomNormal(seed=0)((100, COLUMNS)))  # rows that a table of 100 ids has
    small, table = np.flatnonzero(ids < 100), np.asarray(alone.table).copy()
    table[small] = first[ids[small]]
    alone.table.assign(table)
    for given, targets in steps:
        rx.function(alone.step)(np.searchsorted(ids, given), targets)
    for place in small:
        for mine, his in zip(got[ids[place]], alone.values(), strict=True):
            np.testing.assert_allclose(mine, his[place], rtol=1e-6, atol=1e-7)


def test_looking_up_gives_no_id_a_row(fake_ray):
    with strategy_of(1, 2, max_staleness=0) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            growing = Growing(OPTIMIZERS["sgd"])
        look_up = rx.function(lambda ids: growing.table.value.at[ids].get())
        ids = np.array([5, 10**9, 5, 80], np.int32)
        rows = coordinator.schedule(look_up, args=(ids,)).fetch()
        first = np.asarray(keras.initializers.RandomNormal(seed=0)((100, COLUMNS)))
        np.testing.assert_allclose(rows[[0, 2, 3]], first[[5, 5, 80]], rtol=1e-6)
        assert growing.by_id() == {}
        coordinator.schedule(growing.step, args=batch([5])).fetch()
        again = coordinator.schedule(look_up, args=(ids,)).fetch()
        np.testing.assert_array_equal(again[[1, 3]], rows[[1, 3]])
        assert np.abs(again[0] - rows[0]).max() > 1e-3


@pytest.mark.nightly
def test_an_id_whose_row_was_taken_begins_anew_with_its_slots(fake_ray):
    with strategy_of(1, 1, max_staleness=0) as strategy:
        coordinator = rx.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            growing = Growing(OPTIMIZERS["adagrad"], capacity=4)

        def step(*ids):
            coordinator.schedule(growing.step, args=batch(ids)).fetch()
            return growing.by_id()

        once = step(7)[7]
        assert sorted(step(1, 2, 3)) == [1, 2, 3, 7]
        assert sorted(step(2, 9)) == [1, 2, 3, 9]  # 7 was used longest ago
        assert sorted(step(3, 7)) == [2, 3, 7, 9]
        assert len(step(1, 2, 8)[2]) == 2
        step(30, 31, 32, 33)
        anew = step(7)[7]
        for mine, his in zip(anew, once, strict=True):
            np.testing.assert_allclose(mine, his, rtol=1e-6)
        with pytest.raises(rx.errors.ArgumentError, match=r"5 different ids.*room for 4"):
            step(1, 2, 3, 4, 5)


@pytest.mark.parametrize("restored_at", [0, 4])
@pytest.mark.parametrize(("evict", "taken"), [("lru", 1), ("lfu", 3), ("age", 2)])
def test_whose_row_is_taken(evict, taken, restored_at):
    rows, index = None, np.full((3, 4), FREE, np.int32) * np.array([1, 0, 0, 0], np.int32)
    for push, ids in enumerate(([2], [1], [1], [1], [2], [3], [2], [4])):
        if push in (0, restored_at):  # As by another server, from a checkpoint.
            rows = GrowingRows(GrowingShard(ShardId(0, 0), ShardId(1, 0), (), evict, 0, 1))
            rows.restore(index)
        rows.admit(np.array(ids))
        index = rows.index
    assert set(index[:, ID].tolist()) == {1, 2, 3, 4} - {taken}


@pytest.mark.parametrize("evict", ["lru", "lfu", "age"])
def test_no_row_is_taken_that_the_push_itself_uses(evict):
    rows = GrowingRows(GrowingShard(ShardId(0, 0), ShardId(1, 0), (), evict, 0, 1))
    rows.restore(np.full((3, 4), FREE, np.int32) * np.array([1, 0, 0, 0], np.int32))
    for ids in ([1], [2], [2], [3], [3], [3]):
        rows.admit(np.array(ids))
    rows.admit(np.array([4, 1]))  # 1 is the oldest, the one used least and longest ago.
    assert set(rows.index[:, ID].tolist()) == {1, 3, 4}


def test_a_checkpoint_of_other_servers_is_refused_and_hashes_spread_ids():
    index = np.full((3, 4), 0, np.int32)
    ids = np.arange(0, 10_000, 4)
    assert 0.4 < owners(ids, 2).mean() < 0.6
    index[:, ID] = ids[owners(ids, 2) == 1][:3]
    rows = GrowingRows(GrowingShard(ShardId(0, 0), ShardId(1, 0), (), "lru", 0, 2))
    with pytest.raises(rx.errors.CheckpointError, match="another number of servers"):
        rows.restore(index)


def test_a_lost_server_gets_ids_rows_and_slots_back(fake_ray, tmp_path):
    with strategy_of(1, 2, max_staleness=0) as strategy:
        with strategy.scope():
            growing = Growing(OPTIMIZERS["adagrad"])
        objects = {"table": growing.table, "slot": growing.slots["accumulator"], "index": growing.index}
        manager = rx.CheckpointManager(tmp_path, objects=objects | {"steps": growing.steps})
        coordinator = rx.coordinator.ClusterCoordinator(strategy, checkpoint_manager=manager)
        coordinator.schedule(growing.step, args=batch([1, 2, 10**8, 50]))
        coordinator.schedule(growing.step, args=batch([1, 7, 9], 1)).fetch()
        manager.save(2)
        manager.wait_until_finished()
        saved = growing.by_id()
        coordinator.schedule(growing.step, args=batch([1, 90, 91, 92], 2)).fetch()
        later = growing.by_id()
        assert len(later) == len(saved) + 3
        coordinator.schedule(growing.step, args=batch([1, 5, 6], 3)).fetch()
        strategy.servers.handles[0].actor.kill()
        strategy.servers.handles[1].actor.kill()
        got = growing.by_id()  # Reading replaces the servers.
        assert sorted(got) == sorted(saved)
        assert all(np.array_equal(a, b) for i in got for a, b in zip(got[i], saved[i], strict=True))
        coordinator.schedule(growing.step, args=batch([1, 90, 91, 92], 2)).fetch()
        got = growing.by_id()
        assert sorted(got) == sorted(later)
        for i, values in later.items():
            for mine, his in zip(got[i], values, strict=True):
                np.testing.assert_allclose(mine, his, rtol=1e-6)
        assert coordinator.stats().server_restarts == 2
