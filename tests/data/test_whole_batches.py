"""Where workers come and go, each row comes once, in the same global batches as without a change."""

from __future__ import annotations

import gc
import weakref

import jax
import numpy as np
import pytest

from replicax.data import (
    DistributedDataset,
    DistributedDatasetFromFunction,
    FileSource,
    InputOptions,
    InputWorkers,
    Rows,
)
from replicax.errors import ArgumentError, BatchError, ElasticError
from replicax.group.renewal import renewed
from replicax.values import PerReplica
from tests.data.fake_worlds import install
from tests.data.row_kinds import Counted

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
            anew=lambda: world.receivers(),
        )

    return make


def has(world, **changed):
    """Gives the processes of a world other receivers of their data."""
    usual = world.receivers
    world.receivers = lambda: usual()._replace(**changed)


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


def test_rows_of_global_batches_are_given_again(world, distribute):
    batch = next(distribute(ROWS[:24], batch_size=12).global_batches())
    assert (batch.sharding.mesh.size, np.asarray(batch).tolist()) == (4, list(range(12)))
    world.change(5)  # 12 rows do not divide: they come whole.
    assert renewed(batch).tolist() == list(range(12))
    world.change(3)
    assert renewed(batch).sharding.mesh.size == 3


def test_what_was_read_ahead_is_split_for_the_world_that_takes_it(world, distribute, rows_of):
    dataset = distribute(ROWS[:36], batch_size=12)
    assert dataset.element_spec.shape == (3,)
    iterator = iter(dataset)
    world.change(2)
    assert iterator.get_next_as_optional().get_value().num_replicas == 2
    assert iterator.element_spec.shape == dataset.element_spec.shape == (6,)
    assert dataset.num_workers == 1
    state = iterator.get_state()
    assert state["rows"] == 12
    again = distribute(ROWS[:36], batch_size=12)
    again.set_state(state)
    assert np.concatenate([rows_of(step) for step in again]).tolist() == list(range(12, 36))


def test_placing_ahead_may_fail_while_the_world_changes(world, distribute, rows_of):
    has(world, mesh_for=lambda replicas: None)
    iterator = iter(distribute(ROWS[:24], batch_size=12, prefetch=0))
    del world.receivers  # As the next world has them.
    world.at_boundary = lambda: world.change(3)
    assert rows_of(next(iterator)).tolist() == list(range(12))


def test_an_error_of_placing_is_raised_to_the_loop(world, distribute):
    def mesh_for(replicas):
        raise RuntimeError("no such device")

    has(world, mesh_for=mesh_for)
    dataset = distribute(ROWS[:24], batch_size=12)
    with pytest.raises(RuntimeError, match="no such device"):
        next(iter(dataset))


def test_no_step_is_dropped_whole(world, distribute, rows_of):
    world.change(8)
    dataset = distribute(ROWS[:21], batch_size=9, remainder="drop")
    assert len(dataset) == 3
    assert [len(rows_of(step)) for step in dataset] == [8, 8, 3]


def test_files_are_read_by_every_worker(world, distribute, rows_of):
    parts = np.split(ROWS, [7, 30, 41])
    dataset = distribute(FileSource(range(4), lambda file: parts[file], batch_size=12))
    iterator = iter(dataset)
    first = [rows_of(next(iterator)) for _ in range(2)]
    state = iterator.get_state()
    assert state["units"] == {"of": 4, "done": [[0, 0]], "begun": {"1": 17}}
    iterator.close()
    world.change(3)
    dataset.set_state(state)
    assert np.concatenate([*first, *map(rows_of, dataset)]).tolist() == ROWS.tolist()


@pytest.mark.parametrize("source", [Counted((20, 0, 15, 25)), list(range(60))], ids=["files", "by number"])
def test_rows_in_changing_worlds(world, distribute, rows_of, source):
    batches = Rows(source).map(np.int32).shuffle(seed=1, buffer=12).batch(12)
    expected = [batch.tolist() for batch in batches]
    dataset = distribute(batches)
    iterator = iter(dataset)
    found = [rows_of(next(iterator)).tolist() for _ in range(2)]
    world.change(3)
    found.append(rows_of(next(iterator)).tolist())
    state = iterator.get_state()
    iterator.close()
    world.change(2)
    dataset.set_state(state)
    assert found + [rows_of(step).tolist() for step in dataset] == expected


def test_a_function_keeps_the_batches_of_its_pass(world, rows_of):
    asked = []

    def batches(context):
        asked.append((context.num_input_pipelines, context.num_replicas_in_sync))
        size = context.get_per_replica_batch_size(12)
        return [ROWS[i : i + size] for i in range(0, 48, size)]

    first = world.receivers()
    dataset = DistributedDatasetFromFunction(
        batches, num_replicas=4, mesh_for=first.mesh_for, options=InputOptions(prefetch=1), anew=world.receivers
    )
    iterator = iter(dataset)
    assert next(iterator).num_replicas == 4
    state = iterator.get_state()
    assert state["replicas"] == 4
    world.change(2)
    rest = [rows_of(step).tolist() for step in iterator]
    assert rest == [list(range(i, i + 12)) for i in range(12, 48, 12)]
    dataset.set_state(state)
    assert [rows_of(step).tolist() for step in dataset] == rest
    assert [rows_of(step).tolist() for step in dataset] == [list(range(12)), *rest]
    assert asked == [(1, 4), (1, 4), (1, 2)]


def test_data_of_one_worker_is_refused(distribute):
    with pytest.raises(ElasticError, match="lost with the worker"):
        distribute(ROWS, batch_size=12, auto_shard_policy="off")


def test_states_that_do_not_fit(distribute):
    dataset = distribute(ROWS, batch_size=12)
    dataset.set_state({"format": 1, "pass": 0, "rows": 7, "batches": 7, "units": {"of": 3, "done": [], "begun": {}}})
    with pytest.raises(ArgumentError, match="3 parts"):
        next(iter(dataset))


def test_a_used_up_iterator_is_no_empty_dataset(distribute):
    source = iter([ROWS[:12]])
    dataset = distribute(lambda: source)
    assert len(list(dataset)) == 1
    with pytest.raises(BatchError, match="used-up"):
        list(dataset)


def test_the_report_shows_the_present_world(world, distribute):
    dataset = distribute(ROWS[:24], batch_size=12)
    assert dataset.shard_report() == "worker:0: 24 rows, 2 batches, overlap 0, missing 0"
    has(world, workers=InputWorkers(1, ("worker:0", "worker:2"), (1, 1)))
    world.change(2)
    assert dataset.shard_report() == "worker:0: 12 rows, 2 batches, overlap 0, missing 12"
