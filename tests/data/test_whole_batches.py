"""Where workers come and go, each row comes once, in the same global batches as without a change."""

from __future__ import annotations

import gc
import weakref

import jax
import numpy as np
import pytest

from replicax.data import DistributedDataset, InputOptions
from replicax.renewal import renewed
from replicax.values import PerReplica
from tests.data.fake_worlds import install

ROWS = np.arange(57)


@pytest.fixture
def world(monkeypatch):
    return install(monkeypatch, 4)


@pytest.fixture
def distribute(world):
    def make(source, batch_size=None, **options):
        first = world.receivers()
        return DistributedDataset(
            source,
            num_replicas=first.num_replicas,
            mesh_for=first.mesh_for,
            options=InputOptions(**options),
            batch_size=batch_size,
            anew=world.receivers,
        )

    return make


def test_a_batch_is_given_again_for_the_present_world(world, distribute, rows_of):
    iterator = iter(distribute({"x": ROWS[:24], "y": ROWS[:24]}, batch_size=12))
    batch = next(iterator)
    assert renewed(batch) is batch
    assert (batch["x"].num_replicas, rows_of(batch["x"]).tolist()) == (4, list(range(12)))
    world.change(3)
    again = renewed((batch, "train", None))
    assert again[1:] == ("train", None)
    assert again[0]["x"].num_replicas == 3
    assert rows_of(again[0]["y"]).tolist() == list(range(12))
    # The same object for the next function that takes it, also for a part of it.
    assert renewed(batch)["x"] is again[0]["x"] is renewed(batch["x"])
    assert renewed(again) is again
    world.change(6)
    for old in (batch, again[0]):
        assert renewed(old)["x"].num_replicas == 6
        assert rows_of(renewed(old)["x"]).tolist() == list(range(12))
    world.change(1)
    assert isinstance(renewed(batch)["x"], jax.Array)
    world.change(2)
    assert rows_of(renewed(renewed(batch))["x"]).tolist() == list(range(12))
    assert next(iterator)["x"].num_replicas == 2


def test_a_batch_of_one_replica_becomes_one_of_several(world, distribute, rows_of):
    world.change(1)
    batch = next(iter(distribute(ROWS, batch_size=12)))
    assert isinstance(batch, jax.Array)
    world.change(4)
    assert renewed(batch).num_replicas == 4
    assert rows_of(renewed(batch)).tolist() == list(range(12))


def test_results_of_an_earlier_world_are_left(world):
    result = PerReplica(jax.numpy.ones((4, 2)))
    world.change(2)
    tree = {"a": result, "b": 3, "c": [jax.numpy.zeros(2)]}
    assert renewed(tree) is tree


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_one_shot_iterators_go_on(world, distribute, rows_of, prefetch):
    read = []

    def batches():
        for start in range(0, 48, 12):
            read.append(start)
            yield ROWS[start : start + 12]

    iterator = iter(distribute(batches(), prefetch=prefetch))
    seen = [rows_of(next(iterator))]
    world.change(3)
    seen += [rows_of(step) for step in iterator]
    assert [rows.tolist() for rows in seen] == [list(range(i, i + 12)) for i in range(0, 48, 12)]
    assert read == [0, 12, 24, 36]


def test_a_source_that_uses_its_memory_again(world, distribute, rows_of):
    memory = np.zeros(12, np.int64)

    def batches():
        for start in range(0, 48, 12):
            memory[:] = ROWS[start : start + 12]
            yield memory

    given_first = []
    for step, batch in enumerate(distribute(batches)):
        world.change(2 + step % 2)
        given_first.append(rows_of(renewed(batch)).tolist())
    assert given_first == [list(range(i, i + 12)) for i in range(0, 48, 12)]


def test_the_world_changes_at_the_boundary(world, distribute, rows_of):
    sizes = iter([3, 2, 8, 1, 4])
    world.at_boundary = lambda: world.change(next(sizes))
    steps = list(distribute(ROWS[:48], batch_size=12))
    assert [getattr(step, "num_replicas", 1) for step in steps] == [3, 2, 6, 1]
    assert np.concatenate([rows_of(step) for step in steps]).tolist() == list(range(48))
    assert world.boundaries == 5  # The last finds the end.


def test_batches_go_without_the_garbage_collector(world, distribute):
    gc.disable()
    try:
        iterator = iter(distribute(ROWS[:24], batch_size=12, prefetch=0))
        batch = next(iterator)
        world.change(3)
        again = renewed(batch)
        gone = [weakref.ref(leaf.stacked) for leaf in (batch, again)]
        del batch, again
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()
