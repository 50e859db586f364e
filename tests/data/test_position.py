"""A pass that goes on where another one was left gives each row once."""

from __future__ import annotations

import itertools
import json

import grain
import keras
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import replicax.data.passes as passes
from replicax.data import DistributedDataset, DistributedDatasetFromFunction, FileSource, InputOptions, Rows
from replicax.data.position import Position, RowsRead
from replicax.errors import ArgumentError, BatchError
from tests.data.fake_workers import Team, reading, step_by_step

FEW = settings(max_examples=30)
ROWS = np.arange(50)
BATCHES = np.split(ROWS, [12, 24, 36])


class Items(keras.utils.PyDataset):
    def __len__(self):
        return len(BATCHES)

    def __getitem__(self, index):
        return BATCHES[index]


def files() -> FileSource:
    parts = dict(zip("abcd", BATCHES, strict=True))
    return FileSource(list(parts), parts.__getitem__, batch_size=7)


SOURCES = {
    "arrays": (lambda: ROWS, 12),
    "list": (lambda: BATCHES, None),
    "function": (lambda: lambda: iter(BATCHES), None),
    "PyDataset": (Items, None),
    "grain map": (lambda: grain.MapDataset.source(ROWS).batch(12), None),
    "grain iter": (lambda: grain.MapDataset.source(ROWS).to_iter_dataset().batch(12), None),
    "files": (files, None),
}


@pytest.fixture(scope="session")
def distribute(mesh_for):
    def make(kind, replicas=2, **options):
        source, batch_size = SOURCES[kind]
        options = InputOptions(**options)
        return DistributedDataset(
            source(), num_replicas=replicas, mesh_for=mesh_for, options=options, batch_size=batch_size
        )

    return make


@pytest.mark.parametrize("prefetch", [0, 2])
def test_rows_of_a_dropped_batch_are_counted_with_the_next_step(mesh_for, rows_of, prefetch):
    def made():
        options = InputOptions(prefetch=prefetch, remainder="drop")
        return DistributedDataset(batches, num_replicas=3, mesh_for=mesh_for, options=options)

    batches = np.split(ROWS[:18], [6, 8, 9, 15])  # The second and the third have too few rows for three replicas.
    dataset = made()
    with iter(dataset) as iterator:
        assert [rows_of(next(iterator)).tolist() for _ in range(2)] == [[*range(6)], [*range(9, 15)]]
    state = dataset.get_state()
    assert (state["rows"], state["batches"]) == (15, 2)
    again = made()
    again.set_state(state)
    assert [rows_of(step).tolist() for step in again] == [[15, 16, 17]]


@pytest.mark.daily(3)
@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_stopped_after_any_step_and_resumed_elsewhere(distribute, rows_of, kind, prefetch):
    steps = len(list(distribute(kind)))
    for stop in range(steps + 1):
        dataset = distribute(kind, replicas=3, prefetch=prefetch)
        with iter(dataset) as iterator:
            seen = [rows_of(next(iterator)) for _ in range(stop)]
        state = json.loads(json.dumps(dataset.get_state()))
        again = distribute(kind, replicas=2, prefetch=prefetch)
        again.set_state(state)
        assert again.get_state() == state
        rest = [rows_of(step) for step in again]
        assert np.concatenate([*seen, *rest]).tolist() == ROWS.tolist()
        assert (state["rows"], state["batches"]) == (sum(map(len, seen)), stop)
        # The pass after that is a whole one.
        assert again.get_state()["pass"] == 1
        assert np.concatenate([rows_of(step) for step in again]).tolist() == ROWS.tolist()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loop_that_begins_at_the_end_of_a_pass_says_that_it_gets_nothing(mesh_for, caplog, prefetch):
    """A loop that counts its epochs by its steps leaves one out there."""

    def made():
        return DistributedDataset(
            ROWS[:18], num_replicas=2, mesh_for=mesh_for, options=InputOptions(prefetch=prefetch), batch_size=6
        )

    for stop in range(3):
        dataset = made()
        with iter(dataset) as iterator:
            list(itertools.islice(iterator, stop + 1))
        again = made()
        again.set_state(dataset.get_state())
        caplog.clear()
        sizes = [len(list(again)) for _ in range(2)]
        assert sizes == [2 - stop, 3]
        assert [each.getMessage()[:50] for each in caplog.records] == [
            "The position that was restored is the end of a pas"
        ] * (stop == 2)


def test_one_worker_says_that_a_loop_gets_nothing(caplog):
    for workers in Team([1, 1, 1]).workers:
        position = Position()
        position.add(1, [RowsRead(0, 0, 6)])
        steps = reading([ROWS[:6]] * 3, InputOptions(), 6)(workers).whole(position, 3)
        agreement = step_by_step(workers, None, InputOptions())
        assert not list(passes._kept(steps, agreement, position, passes.SeenBatches(set())))
    assert ["gets no batch" in each.getMessage() for each in caplog.records] == [True]


@FEW
@given(stops=st.lists(st.integers(0, 4), max_size=4), size=st.integers(1, 13))
def test_stopped_again_and_again_with_other_batch_sizes(mesh_for, rows_of, stops, size):
    state, seen = None, []
    for number, stop in enumerate([*stops, 99]):
        dataset = DistributedDataset(ROWS, num_replicas=2, mesh_for=mesh_for, batch_size=size + number)
        if state is not None:
            dataset.set_state(state)
        with iter(dataset) as iterator:
            seen += [rows_of(step) for step in itertools.islice(iterator, stop)]
        state = dataset.get_state()
        if state["pass"]:
            break
    assert np.concatenate(seen).tolist() == ROWS.tolist()


def test_rows_that_were_dropped_do_not_come_again(distribute, rows_of):
    dataset = distribute("list", replicas=8, remainder="drop")
    iterator = iter(dataset)
    assert len(rows_of(next(iterator))) == 8
    assert iterator.get_state()["rows"] == 12
    iterator.close()


def test_an_iterator_goes_on_somewhere_else(distribute, rows_of):
    iterator = iter(distribute("list"))
    next(iterator)
    state = iterator.get_state()
    first = [rows_of(step).tolist() for step in iterator]
    iterator.set_state(state)
    assert [rows_of(step).tolist() for step in iterator] == first
    assert iterator.get_state() == {"format": 1, "pass": 1, "rows": 0, "batches": 0}


def test_the_position_of_a_loop_that_was_left(distribute):
    dataset = distribute("arrays")
    assert dataset.get_state()["rows"] == 0
    for _ in dataset:
        break
    assert dataset.get_state()["rows"] == 12  # and not the steps that were only prefetched
    list(dataset)
    assert dataset.get_state() == {"format": 1, "pass": 2, "rows": 0, "batches": 0}


def test_looking_at_the_first_step_changes_nothing(distribute, rows_of):
    dataset = distribute("function")
    dataset.set_state({"format": 1, "pass": 3, "rows": 24, "batches": 2, "units": units(24)})
    assert dataset.element_spec.shape == (6,)
    assert np.concatenate([rows_of(step) for step in dataset]).tolist() == ROWS[24:].tolist()
    assert dataset.get_state()["pass"] == 4


def units(rows: int) -> dict:
    return {"of": 1, "done": [], "begun": {"0": rows}}


def test_arrays_are_not_read_twice(distribute, rows_of):
    dataset = distribute("arrays")
    dataset.set_state({"format": 1, "pass": 0, "rows": 5, "batches": 1, "units": units(5)})
    assert [rows_of(step)[0] for step in dataset] == [5, 17, 29, 41]


def test_files_that_were_used_up_are_not_opened(mesh_for, rows_of):
    opened = []

    def read(file):
        opened.append(file)
        return np.arange(4) + 10 * file

    source = FileSource(range(5), read, batch_size=4)
    dataset = DistributedDataset(source, num_replicas=2, mesh_for=mesh_for)
    dataset.set_state(
        {"format": 1, "pass": 0, "rows": 10, "batches": 3, "units": {"of": 5, "done": [[0, 1]], "begun": {"2": 2}}}
    )
    assert [rows_of(step).tolist() for step in dataset] == [[22, 23, 30, 31], [32, 33, 40, 41], [42, 43]]
    assert opened == [2, 3, 4]


def test_a_function_of_a_context(mesh_for, rows_of):
    def make():
        return DistributedDatasetFromFunction(
            lambda _: np.split(np.arange(20), 5), num_replicas=2, mesh_for=mesh_for, options=InputOptions()
        )

    dataset = make()
    with iter(dataset) as iterator:
        next(iterator)
    again = make()
    again.set_state(dataset.get_state())
    assert np.concatenate([rows_of(step) for step in again]).tolist() == list(range(8, 20))


def test_iterators_have_no_position(mesh_for):
    dataset = DistributedDataset(iter(BATCHES), num_replicas=2, mesh_for=mesh_for)
    for call in (dataset.get_state, lambda: dataset.set_state(Position().state())):
        with pytest.raises(ArgumentError, match=r"iterator.*cannot give its batches again"):
            call()


@pytest.mark.parametrize(
    "state", [None, {}, {"format": 2, "pass": 0, "rows": 0, "batches": 0}, {**Position().state(), "rows": -1}]
)
def test_what_is_no_state(distribute, state):
    with pytest.raises(ArgumentError, match="get_state"):
        distribute("list").set_state(state)


def test_states_of_other_sources(distribute):
    for kind in ("list", "arrays"):
        dataset = distribute(kind)
        dataset.set_state({"format": 1, "pass": 0, "rows": 70, "batches": 7, "units": units(70)})
        with pytest.raises(BatchError, match=r"after row 70.*only 50 rows"):
            list(dataset)
    dataset = distribute("list")
    dataset.set_state({"format": 1, "pass": 0, "rows": 7, "batches": 7, "units": {"of": 3, "done": [], "begun": {}}})
    with pytest.raises(ArgumentError, match="3 parts"):
        list(dataset)
    dataset = distribute("files")
    dataset.set_state({"format": 1, "pass": 0, "rows": 7, "batches": 7, "units": units(7)})
    with pytest.raises(ArgumentError, match="same files"):
        list(dataset)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_position_in_other_arrays_is_refused(mesh_for, rows_of, prefetch):
    def of_rows(rows, **options):
        options = InputOptions(prefetch=prefetch)
        return DistributedDataset(ROWS[:rows], num_replicas=2, mesh_for=mesh_for, options=options, batch_size=5)

    dataset = of_rows(20)
    with iter(dataset) as iterator:
        next(iterator)
    other, state = of_rows(12), dataset.get_state()
    other.set_state(state)
    with pytest.raises(ArgumentError, match="state is of other data: 20 rows, but this is 12 rows"):
        list(other)
    del state["units"]["source"]  # as they were saved before
    other.set_state(state)
    assert [rows_of(step).tolist() for step in other] == [[*range(5, 10)], [10, 11]]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_bad_rows_are_those_of_the_latest_pass_until_the_next_one_begins(mesh_for, prefetch):
    def read(row):
        if row in bad:
            raise ValueError("damaged")
        return row

    bad = {3, 9}
    dataset = DistributedDataset(
        Rows(range(10)).map(read).batch(4, on_error="skip"),
        num_replicas=2,
        mesh_for=mesh_for,
        options=InputOptions(prefetch=prefetch),
    )
    list(dataset)
    assert dataset.bad_rows == 2
    assert dataset.get_state() == {"format": 1, "pass": 1, "rows": 0, "batches": 0}
    bad = {7}
    with iter(dataset) as iterator:
        assert dataset.bad_rows == 0
        list(iterator)
    assert dataset.bad_rows == 1


def test_used_up_units_are_ranges():
    position = Position()
    for step in range(6):
        position.add(40, [RowsRead(0, 2 * step, 5), RowsRead(1, 2 * step + 1, 5)])
    assert position.state()["units"] == {"of": 40, "done": [[0, 9]], "begun": {"10": 5, "11": 5}}
    assert Position.of(position.state()).state() == position.state()
