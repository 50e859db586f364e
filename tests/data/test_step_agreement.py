"""Workers that read data of their own together do what one process does with all rows."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from replicax.cluster.exchange import ClosedError
from replicax.data import FileSource, InputOptions, step_agreement
from replicax.data.input_steps import share_of
from replicax.data.position import Position
from replicax.data.rebatching import grouped
from replicax.data.rows import Rows
from replicax.errors import ArgumentError, BatchError
from tests.data.fake_workers import (
    Team,
    function_reading,
    parts,
    parts_alone,
    reading,
    step_by_step,
    steps_and_position,
)

FEW = settings(max_examples=40)
TEAMS = st.lists(st.integers(1, 3), min_size=2, max_size=4)
OFF = InputOptions(auto_shard_policy="off")


def rows_from(start: int, count: int) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int32)


def own_rows(counts: list[int]) -> list[np.ndarray]:
    return [rows_from(1000 * worker, count) for worker, count in enumerate(counts)]


def batches_of(rows: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Cuts rows into batches whose sizes go round in `sizes`."""
    batches, start = [], 0
    for size in itertools.cycle(sizes):
        if start >= len(rows):
            return batches
        batches.append(rows[start : start + size])
        start += size


def expected_batches(rows: list[np.ndarray], shares: list[int]) -> list[np.ndarray]:
    """The global batch of each step: each worker's next rows, in the order of the workers."""
    steps = max(-(-len(own) // share) for own, share in zip(rows, shares, strict=True))
    return [
        np.concatenate([own[i * share : (i + 1) * share] for own, share in zip(rows, shares, strict=True)])
        for i in range(steps)
    ]


def shares(team: Team, batch_size: int) -> list[int]:
    return [max(1, share_of(batch_size, workers)) for workers in team.workers]


@FEW
@given(data=st.data(), replicas=TEAMS, batch_size=st.integers(1, 13), remainder=st.sampled_from(["exact", "drop"]))
def test_drained_steps_are_those_of_one_process(data, replicas, batch_size, remainder):
    team = Team(replicas)
    rows = own_rows(data.draw(st.lists(st.integers(0, 60), min_size=len(replicas), max_size=len(replicas))))
    # The first batch says how large the global batch is.
    sources = [batches_of(own, [batch_size, *data.draw(st.lists(st.integers(1, 20), max_size=3))]) for own in rows]
    size = max((len(source[0]) for source in sources if source), default=0)
    options = InputOptions(auto_shard_policy="off", remainder=remainder)
    found = team.steps(reading(sources, options), options)
    if size:
        wanted = parts_alone(expected_batches(rows, shares(team, size)), sum(replicas), remainder)
        assert parts(found) == wanted
        assert all(len(step.rows_read) for step in found[0])
    else:
        assert found == [[]] * len(replicas)


@FEW
@given(data=st.data(), replicas=TEAMS)
def test_per_replica_batches_of_each_worker(data, replicas):
    team = Team(replicas)
    sizes = [data.draw(st.lists(st.integers(1, 4), max_size=8)) for _ in replicas]
    rows = own_rows([sum(each) for each in sizes])
    sources = [np.split(own, np.cumsum(each)[:-1]) if each else [] for own, each in zip(rows, sizes, strict=True)]
    found = team.steps(function_reading(sources, InputOptions()), InputOptions())
    pieces = [
        [piece.batch for piece in grouped(((0, b) for b in source), k)]
        for source, k in zip(sources, replicas, strict=True)
    ]
    wanted = [np.concatenate([batch for batch in step if batch is not None]) for step in itertools.zip_longest(*pieces)]
    assert parts(found) == parts_alone(wanted, sum(replicas), "exact")


def test_seven_three_and_no_batches():
    team = Team([1, 1, 1])
    rows = own_rows([7 * 2, 3 * 2, 0])
    sources = [batches_of(own, [6]) for own in rows]
    found = parts(team.steps(reading(sources, OFF), OFF))
    assert found == parts_alone(expected_batches(rows, [2, 2, 2]), 3, "exact")
    assert sorted(itertools.chain(*itertools.chain(*found))) == sorted(np.concatenate(rows).tolist())


def test_a_worker_without_data_takes_part_in_nests():
    team = Team([1, 1])
    batch = {"x": np.ones((4, 2), np.float64), "y": (np.arange(4), np.zeros(4, bool))}
    found = parts(team.steps(reading([[batch], []], OFF), OFF))
    assert found[0][1] == {"x": [[1.0, 1.0]], "y": ([1], [False])}


def test_shortest_ends_with_the_first(caplog):
    team, options = Team([1, 2]), InputOptions(auto_shard_policy="off", uneven_workers="shortest")
    rows = own_rows([7, 30])
    with caplog.at_level(logging.WARNING, "replicax"):
        found = parts(team.steps(reading([batches_of(own, [9]) for own in rows], options), options))
    assert found == parts_alone(expected_batches(rows, [3, 6])[:3], 3, "exact")
    assert "after 3 steps: at least 6 rows are left (worker:0: 0, worker:1: 6 in the next)" in caplog.text


def test_error_names_workers_and_rows():
    team, options = Team([1, 1]), InputOptions(auto_shard_policy="off", uneven_workers="error")
    for error in team.steps(reading([batches_of(own, [4]) for own in own_rows([8, 5])], options), options):
        assert isinstance(error, BatchError)
        assert "worker:0: 2, worker:1: 1" in str(error)


def test_steps_that_are_even_exchange_no_rows():
    team = Team([2, 2])
    sent = []
    put = team.store.put
    team.store.put = lambda key, value: (sent.append(key), put(key, value))
    found = team.steps(reading([batches_of(own, [8]) for own in own_rows([400, 400])], OFF), OFF)
    assert len(found[0]) == 100
    assert not [key for key in sent if "/rows" in key]
    assert len(sent) < 2 * 15  # a message for up to 16 steps


class Files:
    """Rows of files of such sizes."""

    def __init__(self, *sizes):
        self.sizes, self.files = sizes, tuple(f"part{number}" for number in range(len(sizes)))

    def read(self, file, first):
        return iter(range(100 * file + first, 100 * file + self.sizes[file]))


SEVERAL = {
    "by number": lambda: Rows(range(43)),
    "padded": lambda: Rows(range(43)),
    "in files": lambda: Rows(Files(17, 3, 11)),
    "fewer files": lambda: Rows(Files(5)),
    "by number, filtered": lambda: Rows(range(43)).filter(lambda row: row % 3 > 0),
    "of one row": lambda: Rows(range(1)),
}


@pytest.mark.parametrize("kind", SEVERAL)
@pytest.mark.parametrize("policy", ["drain", "shortest"])
def test_several_passes_are_those_one_after_the_other(kind, policy):
    rows, options = SEVERAL[kind]().shuffle(3, buffer=4), InputOptions(uneven_workers=policy)
    batches = rows.padded_batch(4) if kind == "padded" else rows.batch(4)
    wanted, begun, numbers = [], [], []
    for number in range(3):
        found = parts(Team([1, 2]).steps(reading([batches] * 2, options), options, Position(number)))
        wanted += found
        begun += [number] + [None] * (len(found) - 1) if found else []
    found = Team([1, 2]).steps(reading([batches.repeat(3)] * 2, options), options)
    numbers = [step.begins and step.begins.number for step in found[0]]
    assert parts(found) == wanted
    assert numbers == [None, *begun[1:]]


def all_rows(steps):
    return sorted(row for step in steps for part in step for row in part)


@pytest.mark.parametrize("kind", SEVERAL)
def test_stopped_after_any_step_of_two_passes(kind):
    rows = SEVERAL[kind]().shuffle(3, buffer=4)
    batches = (rows.padded_batch(4) if kind == "padded" else rows.batch(4)).repeat(2)
    whole, _ = steps_and_position(batches, [1, 2], InputOptions())
    for most in range(1, len(whole) + 1):
        first, position = steps_and_position(batches, [1, 2], InputOptions(), most=most)
        rest, _ = steps_and_position(batches, [1, 2], InputOptions(), position)
        if kind == "by number, filtered":  # Workers fill their batches with other rows.
            assert all_rows(first + rest) == all_rows(whole), most
        else:
            assert first + rest == whole, most


def test_passes_without_a_step_are_not_repeated():
    options = InputOptions(uneven_workers="shortest")
    for sizes in ([17, 0], [0, 0]):
        batches = Rows(Files(*sizes)).batch(4).repeat()
        assert Team([1, 1]).steps(reading([batches] * 2, options), options) == [[], []]


def test_shortest_ends_each_pass_of_rows_without_end():
    class WithoutEnd(Files):
        def read(self, file, first):
            return super().read(file, first) if file == 0 else itertools.count(100 + first)

    batches, options = Rows(WithoutEnd(7, 0)).batch(4).repeat(3), InputOptions(uneven_workers="shortest")
    found = parts(Team([1, 1]).steps(reading([batches] * 2, options), options))
    wanted = [[[2 * n, 2 * n + 1], [100 + 2 * n, 101 + 2 * n]] for n in range(3)]
    wanted.append([[6, 106, 107]])
    assert found == wanted * 3


def test_one_message_serves_several_short_passes(monkeypatch):
    monkeypatch.setattr(step_agreement, "_MOST_S", 60.0)  # A busy machine reads less in a tenth of a second.
    team, sent = Team([1, 1]), []
    put = team.store.put
    team.store.put = lambda key, value: (sent.append(key), put(key, value))
    batches = Rows(range(200)).batch(4).repeat(10)
    found = team.steps(reading([batches] * 2, InputOptions()), InputOptions())
    assert len(found[0]) == 500
    assert len(sent) <= 2 * 12  # what is read; 1, 16 and 64 steps; so many more, or more at a time


def test_the_next_pass_is_read_beside_the_end_of_this_one():
    read, team = [], Team([1, 1])
    rows = Rows(range(40)).map(lambda row: read.append(row) or row)
    of_worker = reading([rows.batch(4, threads=1).repeat(2)] * 2, InputOptions())

    def first_pass(workers):
        agreement = step_by_step(workers, team.channel(workers), InputOptions())
        with contextlib.closing(of_worker(workers).steps(agreement, Position())) as steps:
            assert [next(steps).begins for _ in range(10)] == [None] * 10
            return len(read)

    assert min(team.each(first_pass)) > 40


def test_a_failing_source_ends_the_pass_everywhere():
    def failing():
        yield from batches_of(rows_from(0, 24), [4])
        raise OSError("disk on fire")

    team = Team([1, 1])
    first, second = team.steps(reading([lambda: failing(), batches_of(rows_from(0, 200), [4])], OFF), OFF)
    assert isinstance(first, OSError)
    assert isinstance(second, BatchError)
    assert "worker:0: OSError: disk on fire" in str(second)


def test_a_source_that_fails_at_once_ends_the_pass_everywhere():
    def failing():
        raise OSError("no such file")
        yield

    first, second = Team([1, 1]).steps(reading([lambda: failing(), [np.ones(4)]], OFF), OFF)
    assert isinstance(first, OSError)
    assert "worker:0: OSError: no such file" in str(second)


def test_who_does_not_come_is_named():
    team = Team([1, 1, 1])
    channels = [team.channel(workers, timeout_s=0.3) for workers in team.workers]
    channels[1].publish(b"")
    channels[0].publish(b"")
    with pytest.raises(BatchError, match=r"worker:0 waited 0\.3 s for worker:2 to"):
        channels[0].collect()


def test_closing_wakes_a_waiting_thread():
    team = Team([1, 1])
    channel = team.channel(team.workers[0])
    channel.publish(b"")
    begin = time.monotonic()

    def waiting(workers):
        if workers.index:
            time.sleep(0.1)
            channel.close()
            return None
        return channel.collect()

    assert isinstance(team.each(waiting)[0], ClosedError)
    assert time.monotonic() - begin < 2


def test_keys_are_deleted():
    team = Team([1, 1])
    for _ in range(5):
        team.steps(reading([batches_of(own, [4]) for own in own_rows([80, 50])], OFF), OFF)
    assert len(team.store.values) <= 4  # the last rounds of the last pass


def test_different_shapes_of_rows_are_refused():
    team = Team([1, 1])
    for error in team.steps(reading([[np.ones((2, 3))], [np.ones((2, 4))]], OFF), OFF):
        assert isinstance(error, BatchError)
        assert "structure, dtype or shape of a row" in str(error)


def test_everywhere_gives_all_rows_of_an_uneven_step():
    for steps in Team([1, 1]).steps(reading([np.arange(4), np.arange(10, 12)], OFF, 4), OFF, everywhere=True):
        assert [len(step.data.parts) for step in steps] == [1, 1]  # Both replicas take part in both steps.
    for steps in Team([1, 1]).steps(reading([[np.arange(4)], [np.arange(10, 11)]], OFF), OFF, everywhere=True):
        assert steps[0].data.replicas == 1
        assert steps[0].data.parts.tolist() == [[0, 1, 10]]


# Data that all workers read alike.


@FEW
@given(data=st.data(), replicas=TEAMS, remainder=st.sampled_from(["exact", "drop"]), as_arrays=st.booleans())
def test_workers_that_read_alike_keep_their_own_rows(data, replicas, remainder, as_arrays):
    options = InputOptions(remainder=remainder)
    rows, size = rows_from(0, data.draw(st.integers(1, 90))), data.draw(st.integers(1, 17))
    source, batch_size = (rows, size) if as_arrays else (batches_of(rows, [size]), None)
    found = Team(replicas).steps(reading([source] * len(replicas), options, batch_size), options)
    assert parts(found) == parts_alone(batches_of(rows, [size]), sum(replicas), remainder)


@pytest.mark.parametrize("as_arrays", [False, True])
def test_different_orders_are_noticed(as_arrays):
    rows = [np.random.default_rng(seed).permutation(40) for seed in (0, 0, 1)]
    sources = rows if as_arrays else [batches_of(own, [8]) for own in rows]
    for error in Team([1, 1, 1]).steps(reading(sources, InputOptions(), 8 if as_arrays else None), InputOptions()):
        assert isinstance(error, BatchError)
        assert "worker:2" in str(error)
        assert "same seed" in str(error)


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        *itertools.product(["arrays", "rows", "files"], [{"size": 2}, {"position": 4}, {"remainder": "drop"}]),
        *itertools.product(["rows", "files"], [{"drops": True}, {"epochs": 3}]),
    ],
    ids=str,
)
def test_workers_that_split_the_same_rows_differently_are_told(kind, others):
    def steps(workers):
        given = {"size": 4, "drops": False, "epochs": 2, "position": 0, "remainder": "exact"}
        given.update(others if workers.index == 1 else {})
        options, size, position = InputOptions(remainder=given["remainder"]), given["size"], Position()
        if kind == "arrays":
            source, position.shards = np.arange(8), 1
            position.begun[0] = position.rows = given["position"]
        else:
            rows = Rows(range(8) if kind == "rows" else Files(4, 4))
            source = rows.batch(size, drop_remainder=given["drops"]).repeat(given["epochs"])
            position.number = given["position"]
        make = reading([source] * 2, options, size if kind == "arrays" else None)
        return list(make(workers).steps(step_by_step(workers, team.channel(workers), options), position))

    team = Team([1, 1])
    for error in team.each(steps):
        assert isinstance(error, BatchError)
        assert "batch size and options" in str(error)


def test_different_numbers_of_batches_are_noticed_before_the_step():
    sources = [batches_of(rows_from(0, count), [4]) for count in (40, 24)]
    taken, options = [0, 0], InputOptions()

    def count(workers):
        channel = team.channel(workers)
        for _ in reading(sources, options)(workers).steps(step_by_step(workers, channel, options), Position()):
            taken[workers.index] += 1

    team = Team([1, 1])
    assert ["worker:1: no more batches" in str(error) for error in team.each(count)] == [True, True]
    assert taken == [6, 6]


# Files.


def file_source(sizes: list[int], batch_size: int, chunk: int = 3) -> tuple[FileSource, list[list[int]]]:
    rows = {f"file{i}": rows_from(100 * i, size) for i, size in enumerate(sizes)}
    source = FileSource(list(rows), lambda file: iter(batches_of(rows[file], [chunk])), batch_size=batch_size)
    return source, [own.tolist() for own in rows.values()]


@FEW
@given(replicas=TEAMS, sizes=st.lists(st.integers(0, 20), min_size=1, max_size=7), batch_size=st.integers(1, 12))
def test_files_are_read_once(replicas, sizes, batch_size):
    source, rows = file_source(sizes, batch_size)
    team = Team(replicas)
    found = team.steps(reading([source] * len(replicas), InputOptions()), InputOptions())
    own = [np.array(list(itertools.chain(*rows[i :: len(replicas)])), np.int32) for i in range(len(replicas))]
    assert parts(found) == parts_alone(expected_batches(own, shares(team, batch_size)), sum(replicas), "exact")


def test_policies_that_do_not_fit():
    source = np.arange(4)
    with pytest.raises(ArgumentError, match="FileSource"):
        reading([source], InputOptions(auto_shard_policy="file"), 2)(Team([1]).workers[0])
    with pytest.raises(ArgumentError, match="shard"):
        reading([source], InputOptions(auto_shard_policy="hint"), 2)(Team([1]).workers[0])
    with pytest.raises(ArgumentError, match="'off', 'auto'"):
        InputOptions(auto_shard_policy="nothing")
    with pytest.raises(ArgumentError, match="at least one file"):
        FileSource([], len, batch_size=2)


# Positions.


class ShardedSource:
    """A source that takes a hint."""

    def __init__(self, batches, count=1, index=0):
        self._batches, self._count, self._index = batches, count, index

    def shard(self, num_shards, index):
        return ShardedSource(self._batches, num_shards, index)

    def __iter__(self):
        return iter(self._batches[self._index :: self._count])


def sources_for_positions():
    rows = rows_from(0, 83)
    batches = batches_of(rows, [6])
    return {
        "arrays": (rows, 6, InputOptions()),
        "list": (batches, None, InputOptions()),
        "function": (lambda: iter(batches), None, InputOptions()),
        "hint": (ShardedSource(batches), None, InputOptions(auto_shard_policy="hint")),
        "files": (file_source([10, 0, 25, 3, 1, 30, 2], 6)[0], None, InputOptions()),
    }


@pytest.mark.parametrize("kind", sources_for_positions())
@pytest.mark.parametrize("teams", [(1, 2, 3), (3, 1, 2), (2, 3, 1), (2, 2, 2)], ids=str)
def test_resumed_with_other_numbers_of_workers_each_row_comes_once(kind, teams):
    source, batch_size, options = sources_for_positions()[kind]
    total = file_source([10, 0, 25, 3, 1, 30, 2], 6)[1] if kind == "files" else [range(83)]
    position, seen = Position(), []
    for number, count in enumerate(teams):
        team, last = Team([1] * count), number == len(teams) - 1
        readings = [reading([source] * count, options, batch_size)(workers) for workers in team.workers]
        found = team.steps(lambda w, r=readings: r[w.index], options, position, most=None if last else 4)
        seen += itertools.chain(*itertools.chain(*parts(found)))
        position = Position.of(position.state())
        for step in found[0]:
            position.add(readings[0].num_shards(position), step.rows_read)
    assert collections.Counter(seen) == collections.Counter(itertools.chain(*total))
    assert position.rows == len(seen)


def test_each_workers_own_data_needs_the_same_workers():
    position = Position()
    position.add(2, [])
    position.rows = 4
    team = Team([1, 1, 1])
    for error in team.steps(reading([[np.ones(4)]] * 3, OFF), OFF, position):
        assert isinstance(error, ArgumentError)
        assert "same number of workers" in str(error)
