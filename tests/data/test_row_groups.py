"""Padded, bucketed and packed batches: alike on any number of workers, each row once, going on where they were."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.data.input_options import InputOptions
from replicax.errors import ArgumentError, BatchError, DataError
from tests.data.fake_workers import steps_and_position

AUTO = InputOptions()
LENGTHS = np.random.default_rng(0).integers(1, 9, 60).tolist()


class Files:
    """Rows of three files whose tokens are the number of the row, from 1."""

    files = ("a", "b", "c")

    def read(self, file, first):
        for number in range(20 * file + first, 20 * file + 20):
            yield {"tokens": np.full(LENGTHS[number], number + 1), "length": LENGTHS[number]}


def in_a_list():
    return rx.data.Rows([row for file in range(3) for row in Files().read(file, 0)])


GROUPED = {
    "padded": lambda rows: rows.padded_batch(8),
    "bucketed": lambda rows: rows.bucketed_batch(lambda row: row["length"], [3, 6], [8, 6, 4]),
    "packed": lambda rows: rows.packed_batch(4, {"tokens": 16}),
}
SOURCES = {"by number": lambda: in_a_list().shuffle(seed=2), "in files": lambda: rx.data.Rows(Files())}


def steps_of(batches, replicas, position=None, most=None):
    """The tokens of each step, and the position after them."""
    steps, after = steps_and_position(batches, replicas, AUTO, position, most)
    return [[row for part in step for row in part["tokens"]] for step in steps], after


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", GROUPED)
def test_each_row_once_on_any_workers_and_after_a_stop(kind, source):
    batches = GROUPED[kind](SOURCES[source]())
    alone, _ = steps_of(batches, [1])
    seen = sorted(token for step in alone for row in step for token in set(row) - {0})
    assert seen == list(range(1, 61))
    assert steps_of(batches, [2, 1])[0] == alone
    first, position = steps_of(batches, [1, 1], most=2)
    rest, _ = steps_of(batches, [2], position)
    assert first + rest == alone


def test_what_is_in_the_batches():
    rows = rx.data.Rows([np.arange(1, 4), np.arange(1, 2), np.arange(1, 3)])
    assert [batch.tolist() for batch in rows.padded_batch(2, [4], -1)] == [
        [[1, 2, 3, -1], [1, -1, -1, -1]],
        [[1, 2, -1, -1]],
    ]
    assert [batch.tolist() for batch in rows.padded_batch(2, drop_remainder=True)] == [[[1, 2, 3], [1, 0, 0]]]
    pairs = rows.map(lambda row: (row, len(row)))
    (batch,) = pairs.padded_batch(3, ([None], []), (9, 0))
    assert (batch[0].tolist(), batch[1].tolist()) == ([[1, 2, 3], [1, 9, 9], [1, 2, 9]], [3, 1, 2])
    # As tf.data: a row of a boundary's length is in the bucket above; what is left at the end comes by bucket.
    by_length = [batch.tolist() for batch in rows.bucketed_batch(len, [2], [2, 2])]
    assert by_length == [[[1, 2, 3], [1, 2, 0]], [[1]]]
    assert len(list(rows.bucketed_batch(len, [2], [2, 2], drop_remainder=True))) == 1
    packed = rows.map(lambda row: {"x": row}).packed_batch(1, {"x": 4})
    assert [batch["x_positions"].tolist() for batch in packed] == [[[0, 1, 2, 0]], [[0, 1, 0, 0]]]


def test_rows_that_are_left_out_count():
    def read(row):
        if row["length"] == 4:
            raise ValueError("four")
        return row

    rows = in_a_list().map(read).filter(lambda row: row["length"] != 5)
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    dataset = strategy.distribute_dataset(rows.packed_batch(4, {"tokens": 16}, on_error="skip"))
    with iter(dataset) as steps:
        states = [dataset.get_state() for _ in steps]
    assert [state["rows"] for state in states][-1] == 60
    assert states[-1]["bad"] == LENGTHS.count(4)


@pytest.mark.parametrize(
    ("batches", "error", "words"),
    [
        (lambda: in_a_list().packed_batch(2, {"tokens": 4}), DataError, r"record \d+: 'tokens' has shape .*`filter`"),
        (lambda: in_a_list().packed_batch(2, {"words": 4}), DataError, "dicts with \\['words'\\]"),
        (lambda: in_a_list().padded_batch(2, {"tokens": [4], "length": []}), DataError, "does not fit into \\[4\\]"),
        (lambda: in_a_list().padded_batch(2, [4]), ArgumentError, "a pytree as the rows"),
        (lambda: rx.data.Rows([1, (2, 3)]).padded_batch(2), DataError, "another structure"),
        (lambda: in_a_list().packed_batch(2, {}), ArgumentError, "`lengths`"),
        (lambda: in_a_list().bucketed_batch(len, [3, 2], [1, 1, 1]), ArgumentError, "ascending"),
        (lambda: in_a_list().bucketed_batch(len, [3], [1]), ArgumentError, "one number more"),
        (lambda: in_a_list().batch(2).repeat(0), ArgumentError, "`epochs` .* at least 1, or None or -1 for no end"),
        (lambda: in_a_list().repeat(-2), ArgumentError, "or None or -1"),
        (
            lambda: in_a_list().padded_batch(2, {"tokens": 9, "length": []}),
            ArgumentError,
            r"leaf \['tokens'\] is a seq",
        ),
    ],
)
def test_errors(batches, error, words):
    with pytest.raises(error, match=words):
        list(batches())


def of(*values):
    return rx.data.Rows([{"t": np.asarray(each)} for each in values])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (of([1, 2], [1.5]), "record 1: 't' is of dtype float64 .* first row of this pass of int64"),
        (of(np.int32([1]), np.int64([2**40])), "record 1: 't' is of dtype int64"),
        (of(np.ones((2, 3)), np.ones((1, 4))), r"record 1: 't' is of dtype float64 and shape \(1, 4\)"),
        (rx.data.Rows([{"t": [1]}, {"t": [[1], [1, 2]]}]), "record 1: 't' cannot become an array"),
    ],
)
def test_rows_that_cannot_be_packed_together(rows, words):
    with pytest.raises(DataError, match=words):
        list(rows.packed_batch(1, {"t": 5}))
    with pytest.raises(DataError, match=words):  # Also where another batch has begun.
        list(rows.packed_batch(1, {"t": 2}))


@pytest.mark.parametrize("grouped", [lambda rows: rows.padded_batch(2), lambda rows: rows.packed_batch(1, {"t": 5})])
def test_masks_of_rows_are_not_lost(grouped):
    rows = rx.data.Rows([{"t": np.ma.masked_less([1, -2], 0)}, {"t": np.arange(3)}])
    with pytest.raises((BatchError, DataError), match=r"A row has a masked array.*\.filled"):
        grouped(rows).first()


def test_an_empty_row_is_packed():
    packed = rx.data.Rows([{"t": [1, 2]}, {"t": []}, {"t": [3]}]).packed_batch(1, {"t": 4}).first()
    assert (packed["t"].tolist(), packed["t"].dtype) == ([[1, 2, 3, 0]], np.int64)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int64", -1.5),
        ("uint8", -100),
        ("uint8", 256),
        ("int32", 2**31),
        ("int64", 2**64),
        ("int64", np.nan),
        ("bool", 2),
        ("float16", -1e9),
        ("float32", 2**24 + 1),
        ("float32", 10**400),
        ("float32", 1j),
        (jnp.bfloat16, 257),
        (jnp.int4, 8),
        ("int64", None),
        ("int64", "0"),
        ("int64", np.zeros(2)),
    ],
)
def test_values_that_a_dtype_cannot_hold(dtype, value):
    rows = of(np.ones(3, dtype), np.ones(2, dtype))
    for batches in (
        rows.padded_batch(2, values={"t": value}),
        rows.bucketed_batch(len, [9], [2, 2], None, {"t": value}),
    ):
        with pytest.raises(ArgumentError, match=r"`values`: leaf \['t'\] is ") as found:
            batches.first()
        assert repr(value)[:100] in str(found.value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int64", -1.0),
        ("uint8", np.int64(255)),
        ("bool", True),
        ("float32", 0.1),
        ("float16", -np.inf),
        ("float32", -1e30),
        ("complex64", 0.1j),
        ("float32", np.nan),
        ("complex64", 1j),
        (jnp.bfloat16, -0.1),
        (jnp.bfloat16, jnp.float32(2)),
        ("uint64", 2**63),
    ],
)
def test_values_that_a_dtype_holds(dtype, value):
    padded = of(np.ones(3, dtype), np.ones(2, dtype)).padded_batch(2, values=value).first()["t"]
    assert padded.dtype == dtype
    np.testing.assert_array_equal(padded[1, 2], np.asarray(value).astype(dtype))


def boom(row):
    raise KeyError("length")


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (lambda row: None, "a number of at least 0, not None"),
        (lambda row: float("nan"), "not nan"),
        (lambda row: float("inf"), "not inf"),
        (lambda row: -1, "not -1"),
        (lambda row: "9", "not '9'"),
        (lambda row: np.ones(2), "not array"),
        (boom, "`length` raised KeyError: 'length'"),
    ],
)
def test_lengths_that_are_none(length, words):
    def second(row):
        return 1 if row == 0 else length(row)

    with pytest.raises(DataError, match=f"record 1: .*{words}"):
        list(rx.data.Rows([0, 1]).bucketed_batch(second, [4], [2, 2]))


@pytest.mark.parametrize("length", [3, 3.0, np.int32(3), np.array(3), jnp.array(3)])
def test_lengths_of_any_kind_of_number(length):
    batches = rx.data.Rows([0, 1]).bucketed_batch(lambda row: length if row else 4, [4], [1, 1])
    assert [batch.tolist() for batch in batches] == [[0], [1]]


def test_several_epochs_one_after_the_other():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    batches = rx.data.Rows(range(10)).shuffle(seed=1).batch(4)
    epochs = [[batch.tolist() for batch in batches] for _ in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    assert [batch.tolist() for batch in batches.repeat(3)] == [*epochs[0], *epochs[1], *epochs[2]]

    def rows_of(batch):
        return np.ravel(np.asarray(batch.stacked)).tolist()

    dataset = strategy.distribute_dataset(rx.data.Rows(range(10)).shuffle(seed=1).batch(4).repeat())
    with iter(dataset) as steps:
        found = [rows_of(next(steps)) for _ in range(5)]
        state = dataset.get_state()
        found += [rows_of(next(steps)) for _ in range(2)]
    assert found == [*epochs[0], *epochs[1], *epochs[2]][:7]
    dataset = strategy.distribute_dataset(rx.data.Rows(range(10)).shuffle(seed=1).batch(4).repeat(3))
    dataset.set_state(state)
    assert [rows_of(batch) for batch in dataset] == [*epochs[1], *epochs[2]][2:]
    assert len(dataset) == 9
    with pytest.raises(ArgumentError, match="not known"):
        len(batches.repeat())


def test_a_remainder_is_dropped_by_all_workers():
    batches = in_a_list().map(lambda row: {"tokens": np.array([row["length"]])}).batch(16, drop_remainder=True)
    assert len(batches) == len(list(batches)) == 3
    for replicas in ([1], [1, 1], [2, 1]):
        assert [len(step) for step in steps_of(batches, replicas)[0]] == [16] * 3
    assert bool(rx.data.Rows(range(3)).filter(lambda row: False).batch(2))
