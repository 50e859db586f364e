"""Rows of every kind of source come once each, in the same order, whoever reads them and wherever a pass goes on."""

from __future__ import annotations

import collections
import importlib.util
import itertools
import time

import numpy as np
import pytest

import replicax as rx
from replicax.data import InputOptions
from replicax.data.position import Position
from replicax.errors import ArgumentError, BatchError, DataError
from tests.data.fake_workers import Team, reading, steps_and_position
from tests.data.row_kinds import OPEN, ROWS, Counted, make

AUTO = InputOptions()
OF_THE_NIGHT = [
    pytest.mark.nightly,
    pytest.mark.skipif(not importlib.util.find_spec("datasets"), reason="needs pip install 'replicax[hf]'"),
]
KINDS = [pytest.param(kind, marks=OF_THE_NIGHT if kind.startswith("Hugging Face") else []) for kind in OPEN]


@pytest.fixture(scope="session")
def rows_of_kind(tmp_path_factory):
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = make(kind, tmp_path_factory.mktemp("rows"))
        return made[kind]

    return get


def flat(batches):
    return [int(row) for batch in batches for row in np.ravel(batch)]


def steps_of(batches, replicas, options=AUTO, position=None, most=None):
    """The rows of each step, and the position after them."""
    steps, after = steps_and_position(batches, replicas, options, position, most)
    return [list(itertools.chain(*step)) for step in steps], after


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_once_in_another_order_in_each_epoch(rows_of_kind, kind):
    rows = rows_of_kind(kind)
    in_order = flat(rows.batch(8))
    assert sorted(in_order) == list(range(ROWS))
    batches = rows.shuffle(seed=3, buffer=20, files=3).batch(8)
    first, second, again = flat(batches), flat(batches), flat(rows.shuffle(seed=3, buffer=20, files=3).batch(8))
    assert first == again
    assert sorted(first) == sorted(second) == sorted(in_order)
    assert len({tuple(first), tuple(second), tuple(in_order)}) == 3


@pytest.mark.daily(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("teams", [(2, 2, 2), (1, 2, 3), (3, 1, 2)], ids=str)
def test_killed_and_resumed_on_other_workers(rows_of_kind, kind, shuffled, teams):
    rows = rows_of_kind(kind)
    batches = (rows.shuffle(seed=5, buffer=20, files=3) if shuffled else rows).batch(6, threads=2)
    position, seen = Position(), []
    for number, count in enumerate(teams):
        last = number == len(teams) - 1
        steps, position = steps_of(batches, [1] * count, position=position, most=None if last else 3)
        seen += steps
    assert sorted(flat(seen)) == list(range(ROWS))
    assert position.rows == ROWS
    if len(set(teams)) == 1 or batches.files is None:  # the same order as without a kill
        assert seen == steps_of(batches, [1] * teams[0])[0]
    if batches.files is None:  # and as on one worker
        assert flat(seen) == flat(batches)


def test_fewer_files_than_workers_give_the_order_of_one_worker():
    batches = rx.data.Rows(Counted((50, 40))).shuffle(seed=1, buffer=10).batch(6)
    alone = [batch.tolist() for batch in batches]
    assert steps_of(batches, [1, 1, 1])[0] == alone
    steps, position = steps_of(batches, [1, 1, 1], most=4)
    rest, _ = steps_of(batches, [2, 2], InputOptions(auto_shard_policy="data"), position)
    assert steps + rest == alone
    # By number, all of it is the same for two workers and for workers with different numbers of replicas.
    for size in (9, 5, 3):  # Some steps have rows for one worker only.
        indexed = rx.data.Rows(range(49)).shuffle(seed=1).batch(size)
        assert steps_of(indexed, [1, 3])[0] == [batch.tolist() for batch in indexed]


class Blocky(Counted):
    """The same, in blocks."""

    def blocks(self, file, first):
        rows = np.array([*self.read(file, first)], np.int32)
        for start in range(0, len(rows), 5):
            yield rows[start : start + 5]


@pytest.mark.parametrize("replicas", [[1], [1, 1], [2, 1], [1] * 7], ids=str)
@pytest.mark.parametrize("size", [4, 9])
def test_blocks_give_what_rows_give(replicas, size):
    blocks, rows = (rx.data.Rows(source).batch(size) for source in (Blocky(), Counted()))
    expected, _ = steps_of(rows, replicas)
    assert steps_of(blocks, replicas)[0] == expected
    begun, position = steps_of(blocks, replicas, most=3)
    assert position.state() == steps_of(rows, replicas, most=3)[1].state()
    assert begun + steps_of(blocks, replicas, position=position)[0] == expected


def test_files_are_dealt_and_read_by_one_worker_each():
    opened = collections.defaultdict(list)

    class Noted(Counted):
        def __init__(self, worker):
            super().__init__()
            self._worker = worker

        def read(self, file, first):
            opened[self._worker].append(file)
            return super().read(file, first)

    sources = [rx.data.Rows(Noted(worker)).batch(6) for worker in range(2)]
    Team([1, 1]).steps(reading(sources, AUTO), AUTO)
    assert opened == {0: [0, 2, 4], 1: [1, 3, 5]}


def bad_at(*bad):
    def read(row):
        if row in bad:
            raise ValueError("damaged")
        return row

    return read


@pytest.mark.parametrize("replicas", [[2], [1, 1], [1, 2]], ids=str)
@pytest.mark.parametrize("in_files", [False, True])
def test_bad_rows_are_skipped_and_counted_alike(replicas, in_files):
    source = Counted((20, 25, 15)) if in_files else range(60)
    everything = flat(rx.data.Rows(source).batch(60))
    bad = [everything[0], everything[3], everything[17], everything[40], everything[59]]
    batches = rx.data.Rows(source).map(bad_at(*bad)).batch(6, on_error="skip")
    steps, position = steps_of(batches, replicas)
    assert sorted(flat(steps)) == sorted(set(everything) - set(bad))
    assert position.bad == len(bad)
    if not in_files or len(replicas) == 1:  # Else a worker's files end before the others'.
        assert all(len(step) == 6 for step in steps[:-3])
    for stop in (1, 4, 7):
        begun, position = steps_of(batches, replicas, most=stop)
        rest, position = steps_of(batches, [1], position=position)
        assert sorted(flat(begun + rest)) == sorted(set(everything) - set(bad)), stop
        assert position.bad == len(bad)


@pytest.mark.parametrize("replicas", [[1], [1, 1]], ids=str)
def test_an_error_names_the_row_on_every_worker(replicas):
    batches = rx.data.Rows(Counted()).map(bad_at(205)).batch(4)
    team = Team(replicas)
    found = team.steps(reading([batches] * len(replicas), AUTO), AUTO)
    assert all(isinstance(error, (DataError, BatchError)) for error in found)
    assert all("file2, record 5: ValueError: damaged" in str(error) for error in found)
    (error,) = [error for error in found if isinstance(error, DataError)]
    assert (error.file, error.record) == ("file2", 5)


def test_random_numbers_belong_to_the_row():
    rows = rx.data.Rows(range(40)).random_map(lambda row, draw: np.array([row, draw.integers(1000)]), seed=2)
    plain = {row[0]: row[1] for batch in rows.batch(7) for row in batch.tolist()}
    batches = rows.shuffle(seed=1).batch(4)
    shuffled = {row[0]: row[1] for step in steps_of(batches, [1, 1])[0] for row in step}
    assert plain == shuffled
    assert len(set(plain.values())) > 30
    assert {row[0]: row[1] for batch in [*batches, *batches][10:] for row in batch.tolist()} != plain  # another epoch


def test_rows_that_differ_and_states_of_other_data():
    rows = rx.data.Rows(Counted()).map(lambda row: np.zeros(3 if row == 203 else 2))
    with pytest.raises(BatchError, match=r"'file2', 3.*'file2', 4.*pad, crop"):
        list(rows.batch(16))
    _, position = steps_of(rx.data.Rows(range(50)).batch(5), [1], most=2)
    with pytest.raises(ArgumentError, match=r"50 rows.*60 rows"):
        steps_of(rx.data.Rows(range(60)).batch(5), [1], position=position)
    with pytest.raises(ArgumentError, match="50 rows, seed 1"):
        steps_of(rx.data.Rows(range(50)).shuffle(seed=1).batch(5), [1], position=position)
    team = Team([1, 1])
    sources = [rx.data.Rows(range(50 + worker)).batch(5) for worker in range(2)]
    for error in team.steps(reading(sources, AUTO), AUTO):
        assert isinstance(error, BatchError)
        assert "worker:1: 51 rows" in str(error)
    with pytest.raises(DataError, match="No row could be read"):
        list(rx.data.Rows(range(5)).map(bad_at(*range(5))).batch(2, on_error="skip"))
    with pytest.raises(DataError, match="The first 100 rows"):
        list(rx.data.Rows(range(500)).map(bad_at(*range(200))).batch(2, on_error="skip"))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            [{"feat": np.ones(7), "y": 1}, {"feat": np.ones(6), "y": 1}],
            r"differ, leaf \['feat'\], .*1\): values of shapes \(7,\) and \(6,\)\. .*`padded_batch`.*pad, crop",
        ),
        ([{"n": 1}, {"n": np.uint64(2**63)}], r"differ, leaf \['n'\], .* no dtype holds together"),
        (
            [{"x": {"a": 1, "b": 2}, "y": 3}, {"x": {"b": 2, "c": 3}, "y": None}],
            r"first has a value at \['x'\]\['a'\], \['y'\], only the second has a value at \['x'\]\['c'\]\. ",
        ),
        ([{"x": 1, "y": 2}, {"x": 1}], r"1\): only the first has a value at \['y'\]\. "),
        ([{"x": (1, 2)}, {"x": [1, 2]}], r"\(\*, \*\)}\) and PyTreeDef\({'x': \[\*, \*\]}\)"),
        ([1, {"x": 1}], r"PyTreeDef\(\*\) and PyTreeDef\({'x': \*}\)"),
    ],
)
def test_how_rows_differ(rows, says):
    with pytest.raises(BatchError, match=says):
        rx.data.Rows(rows).batch(2).first()


def test_a_file_that_got_shorter():
    _, position = steps_of(rx.data.Rows(Counted()).batch(5), [1], most=4)
    with pytest.raises(DataError, match=r"file2.*fewer"):
        steps_of(rx.data.Rows(Counted((13, 0, 3, 7, 22, 1))).batch(5), [1], position=position)


def test_fit_takes_rows():
    import keras

    def fitted(data_for):
        keras.utils.set_random_seed(0)
        strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        return model.fit(data_for(strategy), epochs=2, shuffle=False, verbose=0).history["loss"]

    x = np.random.default_rng(0).normal(size=(26, 2)).astype("float32")
    arrays = (x, x.sum(axis=1, keepdims=True))
    losses = fitted(lambda strategy: strategy.distribute_dataset(arrays, batch_size=8))
    rows = rx.data.Rows(rx.data.ArraySource(arrays))
    np.testing.assert_allclose(fitted(lambda _: rows.batch(8)), losses, rtol=1e-6)
    source = rx.data.FileSource([0, 10], lambda at: tuple(each[at : at + 10 + at] for each in arrays), batch_size=8)
    np.testing.assert_allclose(fitted(lambda _: source), losses, rtol=1e-6)


def test_whether_a_job_waits_for_its_input():
    strategy = rx.MirroredStrategy(["cpu:0"])

    def explained(read, work):
        def slow(row):
            time.sleep(read)
            return row

        dataset = strategy.distribute_dataset(rx.data.Rows(range(40)).map(slow).batch(4, threads=1))
        assert "No second batch" in strategy.explain(dataset)
        for _ in dataset:
            time.sleep(work)
        return strategy.explain(dataset)

    assert "The input keeps up with the steps." in explained(0.0, 0.03)
    assert "The job waits for its input, most of all for decoding. Give more threads" in explained(0.01, 0.0)


class SlowByNumber:
    """Rows that take a while to be read, or to be decoded."""

    def __init__(self, read=0.0, decode=0.0):
        self.seconds = read, decode

    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(self.seconds[0])
        return index

    def row_of(self, raw):
        time.sleep(self.seconds[1])
        return raw


class SlowFile(SlowByNumber):
    """The same in a file."""

    files = ("one",)

    def read(self, file, first):
        return (self[row] for row in range(first, 40))


@pytest.mark.parametrize(
    ("waits", "source"),
    {
        "reading from files": lambda s: rx.data.Rows(SlowFile(read=s)).batch(4),
        "reading by numbers": lambda s: rx.data.Rows(SlowByNumber(read=s)).batch(4, threads=2),
        "reading batches": lambda s: lambda: (time.sleep(2 * s) or np.ones(4) for _ in range(9)),
        "decoding from files": lambda s: rx.data.Rows(SlowFile(decode=s)).batch(4, threads=2),
        "decoding by numbers": lambda s: rx.data.Rows(SlowByNumber(decode=s)).batch(4),
        "copying to the devices": lambda s: [np.ones((8, 1 << 18))] * 9,  # These become others of 32 bits.
    }.items(),
)
def test_what_a_job_waits_for(waits, source):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    for seconds in (0.005, 0.05, 0.5):  # On a busy machine it waits for what was to be quick.
        dataset = strategy.distribute_dataset(source(seconds))
        for _ in dataset:
            pass
        told = strategy.explain(dataset)
        if f"most of all for {waits.split()[0]}" in told:
            break
    assert f"waits for its input, most of all for {waits.split()[0]}" in told


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 60, 257, 40_000])
def test_a_shuffle_is_a_permutation_however_it_is_asked_for(rows):
    def order(size):
        return flat(rx.data.Rows(range(rows)).shuffle(seed=3).batch(size))

    whole = order(max(1, rows))
    assert sorted(whole) == [*range(rows)]
    assert rows < 60 or whole != [*range(rows)]
    assert whole == order(4096)


class Refilled:
    """A source that fills the same memory for row after row."""

    def __init__(self, form):
        self.form = form
        self.x, self.row = np.zeros((2, 3), np.int32), {}

    def __len__(self):
        return 70

    def __getitem__(self, index):
        self.x[0] = index
        time.sleep(0.0002)  # Another thread may read meanwhile.
        self.x[1] = index
        if self.form == "object":
            self.row["x"] = self.x.copy()
            return self.row
        return {"array": self.x, "view": self.x[:], "rows": {"x": self.x, "y": index}}[self.form]


@pytest.mark.parametrize("form", ["array", "view", "rows", "object"])
@pytest.mark.parametrize(
    ("size", "readers"), [(16, {"threads": 1}), *((n, {"threads": 4}) for n in (1, 16, 40)), (16, {"processes": 2})]
)
def test_a_source_may_fill_the_same_memory_for_row_after_row(form, size, readers):
    rows = rx.data.Rows(Refilled(form)).batch(size, **readers)
    for _ in range(2):
        found = np.concatenate([batch["x"] if isinstance(batch, dict) else batch for batch in rows])
        assert np.array_equal(found, np.broadcast_to(np.arange(70)[:, None, None], (70, 2, 3)))


def test_memory_that_rows_of_torch_share():
    torch = pytest.importorskip("torch")

    class Source(Refilled):
        def __getitem__(self, index):
            return torch.from_numpy(super().__getitem__(index))[:]

    found = np.concatenate(list(rx.data.Rows(Source("array")).batch(16)))
    assert np.array_equal(found[:, 0, 0], np.arange(70))


def test_rows_that_are_one_object_or_parts_of_one_array():
    row, reads = np.arange(3), []
    assert rx.data.Rows([row] * 5).batch(5).first().tolist() == [[0, 1, 2]] * 5

    class Windows(list):
        def __getitem__(self, index):
            reads.append(index)
            return row[index:], {2: row[index:], "a": index}

    list(rx.data.Rows(Windows(range(3))).map(lambda found: found[0].sum()).batch(3))
    assert reads == [0, 1, 2]  # Each is read once.


def test_arguments():
    for wrong in ("text", 5, {"a": 1}):
        with pytest.raises(ArgumentError, match="`source`"):
            rx.data.Rows(wrong)
    rows = rx.data.Rows(range(4))
    with pytest.raises(ArgumentError, match="on_error"):
        rows.batch(2, on_error="ignore")
    with pytest.raises(ArgumentError, match="function"):
        rows.map(3)
    with pytest.raises(ArgumentError, match="not known"):
        len(rows.filter(bool))
    with pytest.raises(ArgumentError, match="batches"):
        rx.MirroredStrategy(["cpu:0"]).distribute_dataset(rows)
    with pytest.raises(ArgumentError, match="one by one"):
        reading([rows.batch(2)], InputOptions(auto_shard_policy="file"))(Team([1]).workers[0])
