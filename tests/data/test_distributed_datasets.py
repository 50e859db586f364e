from __future__ import annotations

import threading

import grain
import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from replicax import context
from replicax.data import DistributedDataset, DistributedDatasetFromFunction, InputContext, InputOptions, Optional
from replicax.errors import ArgumentError, BatchError, ContextError, EndOfDataError
from replicax.values import PerReplica

FEW = settings(max_examples=40)
SIZES = st.lists(st.integers(1, 17), min_size=1, max_size=6)
REPLICAS = st.integers(1, 8)
PREFETCH = st.sampled_from([0, 1, 3])


def batches_of(sizes):
    """Batches of consecutive row numbers."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


@pytest.fixture(scope="session")
def distribute(mesh_for):
    def make(source, replicas=8, batch_size=None, **options):
        options = InputOptions(**options)
        return DistributedDataset(
            source, num_replicas=replicas, mesh_for=mesh_for, options=options, batch_size=batch_size
        )

    return make


@pytest.fixture(scope="session")
def distribute_function(mesh_for):
    def make(fn, replicas=8, **options):
        return DistributedDatasetFromFunction(
            fn, num_replicas=replicas, mesh_for=mesh_for, options=InputOptions(**options)
        )

    return make


@FEW
@given(sizes=SIZES, replicas=REPLICAS, prefetch=PREFETCH)
def test_every_row_comes_once_and_in_order(distribute, rows_of, sizes, replicas, prefetch):
    dataset = distribute(batches_of(sizes), replicas, prefetch=prefetch)
    for _ in range(2):
        steps = list(dataset)
        assert len(steps) == len(dataset) == len(sizes)
        assert np.concatenate([rows_of(step) for step in steps]).tolist() == list(range(sum(sizes)))


@FEW
@given(rows=st.integers(1, 60), size=st.integers(1, 17), replicas=REPLICAS, prefetch=PREFETCH)
def test_arrays_are_batched_by_rows(distribute, rows_of, rows, size, replicas, prefetch):
    data = {"x": np.arange(2.0 * rows).reshape(rows, 2), "y": np.arange(rows)}
    steps = list(distribute(data, replicas, batch_size=size, prefetch=prefetch))
    assert [len(rows_of(step["y"])) for step in steps] == [min(size, rows - i) for i in range(0, rows, size)]
    assert np.concatenate([rows_of(step["x"]) for step in steps]).tolist() == data["x"].tolist()


@FEW
@given(sizes=SIZES, replicas=REPLICAS, prefetch=PREFETCH)
def test_drop_keeps_the_rows_that_all_replicas_can_share(distribute, rows_of, sizes, replicas, prefetch):
    dataset = distribute(batches_of(sizes), replicas, remainder="drop", prefetch=prefetch)
    expected = [batch[: len(batch) - len(batch) % replicas] for batch in batches_of(sizes)]
    expected = [batch.tolist() for batch in expected if len(batch)]
    if expected:
        steps = list(dataset)
        assert [rows_of(step).tolist() for step in steps] == expected
        assert all(replicas == 1 or step.num_replicas == replicas for step in steps)
    else:
        with pytest.raises(BatchError, match=f"{len(sizes)} batch.*{replicas} replicas"):
            list(dataset)


@FEW
@given(sizes=SIZES, replicas=REPLICAS, prefetch=PREFETCH)
def test_a_function_gives_batches_to_consecutive_replicas(distribute_function, rows_of, sizes, replicas, prefetch):
    dataset = distribute_function(lambda _: batches_of(sizes), replicas, prefetch=prefetch)
    for _ in range(2):
        steps = list(dataset)
        assert len(steps) == -(-len(sizes) // replicas)
        assert np.concatenate([rows_of(step) for step in steps]).tolist() == list(range(sum(sizes)))


def test_a_full_group_is_taken_as_it_is_and_the_tail_is_split(distribute_function):
    full, tail = distribute_function(lambda _: batches_of([2, 2, 2, 2, 1]), replicas=4)
    assert [component.tolist() for component in full.values] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert tail.num_replicas == 1
    (dropped,) = distribute_function(lambda _: batches_of([2, 2, 2, 2, 1]), replicas=4, remainder="drop")
    assert dropped.num_replicas == 4


def test_the_function_runs_once_per_pass_with_its_context(distribute_function):
    calls = []

    def make(input_context):
        calls.append(input_context)
        return batches_of([input_context.get_per_replica_batch_size(8)] * 4)

    dataset = distribute_function(make, replicas=4)
    assert dataset.element_spec == jax.ShapeDtypeStruct((2,), np.int32)
    assert len(list(dataset)) == len(list(dataset)) == 1
    assert calls == [InputContext(1, 0, 4)] * 2


def test_one_replica_gets_plain_arrays(distribute):
    (step,) = distribute([{"x": np.ones((3, 2))}], replicas=1)
    assert isinstance(step["x"], jax.Array)
    assert step["x"].shape == (3, 2)


def test_steps_that_do_not_divide_use_fewer_devices(distribute):
    full, partial, prime = distribute(batches_of([16, 6, 11]), replicas=8)
    assert [type(step) for step in (full, partial, prime)] == [PerReplica] * 3
    assert [len(step.stacked.sharding.device_set) for step in (full, partial, prime)] == [8, 6, 1]


@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_source_may_reuse_its_buffer(distribute, rows_of, replicas, prefetch):
    buffer = np.zeros((8, 16), np.float32)

    def source():
        for value in range(5):
            buffer[:] = value
            yield buffer

    steps = [rows_of(step) for step in list(distribute(source, replicas, prefetch=prefetch))]
    assert [np.unique(step).tolist() for step in steps] == [[0], [1], [2], [3], [4]]


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: grain.MapDataset.source(np.arange(10)).batch(4),
        lambda: grain.MapDataset.source(np.arange(10)).to_iter_dataset().batch(4),
    ],
    ids=["map", "iter"],
)
def test_grain_datasets(distribute, rows_of, make):
    dataset = distribute(make(), replicas=2)
    for _ in range(2):
        assert np.concatenate([rows_of(step) for step in dataset]).tolist() == list(range(10))
    for _ in dataset:
        break  # The fixture that looks for threads sees whether Grain's are gone.


# What a dataset says of itself.


def test_element_spec_is_one_replicas_part(distribute):
    dataset = distribute({"x": np.ones((20, 3)), "y": np.zeros(20, np.int64)}, 4, batch_size=8)
    spec = {"x": jax.ShapeDtypeStruct((2, 3), np.float32), "y": jax.ShapeDtypeStruct((2,), np.int32)}
    assert dataset.element_spec == spec
    assert len(list(dataset)) == 3
    assert dataset.element_spec == spec


@pytest.mark.parametrize("prefetch", [0, 2])
def test_element_spec_takes_nothing_from_an_iterator(distribute, rows_of, prefetch):
    dataset = distribute(iter(batches_of([4, 4, 2])), 2, prefetch=prefetch)
    assert dataset.element_spec.shape == (2,)
    assert np.concatenate([rows_of(step) for step in dataset]).tolist() == list(range(10))
    with pytest.raises(BatchError, match="second pass"):
        next(iter(dataset))


def test_element_spec_of_nothing(distribute):
    dataset = distribute([])
    assert list(dataset) == []
    with pytest.raises(BatchError, match="no batch"):
        _ = dataset.element_spec


@pytest.mark.parametrize(("rows", "drop", "exact"), [(16, 2, 2), (19, 2, 3), (20, 3, 3)])
def test_length_in_steps(distribute, rows, drop, exact):
    data = np.arange(rows)
    assert len(distribute(data, 4, batch_size=8)) == len(list(distribute(data, 4, batch_size=8))) == exact
    dropping = distribute(data, 4, batch_size=8, remainder="drop")
    assert len(dropping) == len(list(dropping)) == drop


def test_length_may_be_unknown(distribute):
    dataset = distribute(lambda: iter(batches_of([4, 4])))
    assert dataset
    assert len(list(dataset)) == 2
    with pytest.raises(ArgumentError, match="unknown"):
        len(dataset)


# Iterators.


def test_get_next_and_the_end(distribute, rows_of):
    iterator = iter(distribute(batches_of([2, 2]), 2))
    assert iter(iterator) is iterator
    assert rows_of(iterator.get_next()).tolist() == [0, 1]
    assert rows_of(next(iterator)).tolist() == [2, 3]
    for _ in range(2):
        with pytest.raises(StopIteration):
            iterator.get_next()


def test_an_optional_has_no_value_at_the_end(distribute, rows_of):
    iterator = iter(distribute(batches_of([2, 2]), 2))
    found = []
    while element := iterator.get_next_as_optional():
        assert element.has_value()
        assert element.element_spec == jax.ShapeDtypeStruct((1,), np.int32)
        found += rows_of(element.get_value()).tolist()
    assert found == [0, 1, 2, 3]
    assert not element.has_value()
    assert element.element_spec == jax.ShapeDtypeStruct((1,), np.int32)
    with pytest.raises(EndOfDataError, match=r"has_value\(\) first"):
        element.get_value()


def test_an_optional_goes_through_functions():
    spec = {"x": jax.ShapeDtypeStruct((2,), np.float32)}
    returned = jax.jit(lambda element: jax.tree.map(lambda x: 2 * x, element))(
        Optional.from_value({"x": np.ones(2, np.float32)})
    )
    assert returned.get_value()["x"].tolist() == [2.0, 2.0]
    assert returned.element_spec == spec
    empty = jax.jit(lambda element: element)(Optional.empty(spec))
    assert not empty.has_value()
    assert empty.element_spec == spec


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_iterators_element_spec_takes_nothing_from_it(distribute, rows_of, prefetch):
    for source in (batches_of([4, 4, 2]), lambda: iter(batches_of([4, 4, 2])), iter(batches_of([4, 4, 2]))):
        iterator = iter(distribute(source, 2, prefetch=prefetch))
        for _ in range(2):
            assert iterator.element_spec == jax.ShapeDtypeStruct((2,), np.int32)
        state = iterator.get_state()
        assert np.concatenate([rows_of(step) for step in iterator]).tolist() == list(range(10))
        assert iterator.get_state() != state
        assert iterator.element_spec.shape == (2,)


def test_element_spec_of_an_iterator_over_nothing(distribute):
    with pytest.raises(BatchError, match="no batch"):
        _ = iter(distribute([])).element_spec


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("kind", ["global batches", "function"])
def test_no_more_than_prefetch_steps_are_read_ahead(distribute, distribute_function, prefetch, kind):
    read = []

    def source():
        for i in range(12):
            read.append(i)
            yield np.full(2, i)

    if kind == "function":
        per_step, dataset = 2, distribute_function(lambda context: source(), 2, prefetch=prefetch)
    else:
        per_step, dataset = 1, distribute(source, 2, prefetch=prefetch)
    with iter(dataset) as iterator:
        for taken in range(1, 4):
            next(iterator)
            assert len(read) <= per_step * (taken + prefetch)
            if not prefetch:
                assert len(read) == per_step * taken


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_with_block_closes(distribute, prefetch):
    with iter(distribute(batches_of([2] * 50), 2, prefetch=prefetch)) as iterator:
        next(iterator)
    assert next(iterator, None) is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("replicax")]


def test_two_passes_at_once(distribute, rows_of):
    dataset = distribute(batches_of([2, 3, 4]), 2)
    assert all(rows_of(a).tolist() == rows_of(b).tolist() for a, b in zip(dataset, dataset, strict=True))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_inside_a_replica_or_program_there_is_no_next(distribute, prefetch):
    iterator = iter(distribute(batches_of([2, 2]), 2, prefetch=prefetch))
    with context.entered(strategy=object(), replica=object()), pytest.raises(ContextError, match=r"strategy\.run"):
        next(iterator)
    with (
        context.entered(frame=object()),
        pytest.raises(ContextError, match=r"(?s)constant of the program.*for batch in"),
    ):
        next(iterator)
    assert len(list(iterator)) == 2


@pytest.mark.parametrize("take", [list, iter, lambda dataset: next(iter(dataset))], ids=["list", "iter", "next"])
def test_a_loop_over_a_dataset_in_a_program_shows_how_to_write_it(distribute, take):
    opened = []
    dataset = distribute(lambda: opened.append(1) or iter(batches_of([2, 2])), 2)
    with (
        context.entered(frame=object()),
        pytest.raises(ContextError, match=r"(?s)iterated over.*\n    for batch in dataset:"),
    ):
        take(dataset)
    with context.entered(strategy=object(), replica=object()), pytest.raises(ContextError, match=r"strategy\.run"):
        take(dataset)
    assert not opened
    assert len(list(dataset)) == 2


# Errors.


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_failing_source_fails_the_step_it_belongs_to(distribute, prefetch):
    def source():
        yield from batches_of([2, 2])
        raise OSError("disk on fire")

    iterator = iter(distribute(source, 2, prefetch=prefetch))
    next(iterator), next(iterator)
    with pytest.raises(OSError, match="disk on fire"):
        next(iterator)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_changed_structure_names_the_batch(distribute, prefetch):
    dataset = distribute([np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(2)], 2, prefetch=prefetch)
    with pytest.raises(BatchError, match=r"(?s)Batch 2 .*rank 2.*rank 1"):
        list(dataset)


def test_a_used_up_iterator_behind_a_function_is_noticed(distribute):
    iterator = iter(batches_of([2, 2]))
    dataset = distribute(lambda: iterator, 2)
    assert len(list(dataset)) == 2
    with pytest.raises(BatchError, match="same used-up iterator"):
        list(dataset)


def test_misuse(distribute, distribute_function, mesh_for):
    with pytest.raises(ArgumentError, match="distributed already"):
        distribute(distribute(batches_of([2])))
    with pytest.raises(ArgumentError, match=r"InputContext.*got \[1\]"):
        distribute_function([1])
    with pytest.raises(ArgumentError, match=r"rx.InputOptions, got 3"):
        DistributedDataset([], num_replicas=2, mesh_for=mesh_for, options=3)
