from __future__ import annotations

import functools

import grain
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.data.sources import host_batches
from replicax.errors import ArgumentError, BatchError

ROWS = np.arange(10, dtype=np.int32)
BATCHES = [ROWS[:4], ROWS[4:8], ROWS[8:]]


class Items:
    """What Keras's `PyDataset` looks like: items and their number, but no iterator."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return BATCHES[index]  # A negative index would work, an endless loop would not end.


class TfDataset:
    """What a `tf.data.Dataset` looks like."""

    def __len__(self):
        return 3

    def __iter__(self):
        raise AssertionError("elements would be TensorFlow's tensors")

    def as_numpy_iterator(self):
        return iter(BATCHES)


def grain_map_dataset():
    return grain.MapDataset.source(ROWS).batch(4)


def grain_loader():
    sampler = grain.samplers.SequentialSampler(10, shard_options=grain.sharding.NoSharding())
    return grain.DataLoader(data_source=ROWS, sampler=sampler, operations=[grain.transforms.Batch(4)])


SOURCES = {
    "array": (functools.partial(host_batches, ROWS, 4), 3),
    "JAX array": (functools.partial(host_batches, jnp.asarray(ROWS), np.int64(4)), 3),
    "list": (lambda: host_batches(BATCHES), 3),
    "function": (lambda: host_batches(lambda: (batch for batch in BATCHES)), None),
    "function of a list": (lambda: host_batches(lambda: BATCHES), None),
    "items": (lambda: host_batches(Items()), 3),
    "tf.data": (lambda: host_batches(TfDataset()), 3),
    "grain map": (lambda: host_batches(grain_map_dataset()), 3),
    "grain iter": (lambda: host_batches(grain_map_dataset().to_iter_dataset()), None),
    "grain loader": (lambda: host_batches(grain_loader()), None),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_its_batches_on_every_pass(name):
    make, length = SOURCES[name]
    batches = make()
    for _ in range(2):
        found = list(batches)
        assert [batch.tolist() for batch in found] == [batch.tolist() for batch in BATCHES]
        assert all(type(batch) is np.ndarray for batch in found)
    if length is not None:
        assert len(batches) == length


def test_a_length_that_is_unknown_is_an_error():
    with pytest.raises(ArgumentError, match=r"unknown before its end"):
        len(host_batches(lambda: iter(BATCHES)))


def test_a_nest_of_arrays_keeps_its_structure():
    nest = {"x": (np.zeros((5, 2)), jnp.ones(5)), "y": np.arange(5)}
    first, last = host_batches(nest, batch_size=3)
    assert first["x"][0].shape == (3, 2)
    assert last["y"].tolist() == [3, 4]
    assert isinstance(last["x"], tuple)


def test_rows_of_the_last_batch_are_known_for_arrays():
    assert [host_batches(ROWS, size).last_rows for size in (4, 5, 10, 100)] == [2, 5, 10, 10]
    assert host_batches(BATCHES).last_rows is None


def test_an_iterator_passes_once():
    batches = host_batches(iter(BATCHES))
    assert len(list(batches)) == 3
    with pytest.raises(BatchError, match=r"list_iterator.*second pass.*function that returns an iterator"):
        next(iter(batches))


@pytest.mark.parametrize(
    ("source", "batch_size", "says"),
    [
        (ROWS, None, r"The dataset is one ndarray, not batches of it: pass batch_size=\.\.\., the number of rows"),
        ((ROWS, ROWS), None, r"tuple.*batch_size=.*make it a list"),
        ({"x": ROWS}, None, r"dict.*batch_size="),
        (BATCHES, 4, r"list already yields batches"),
        (iter(BATCHES), 4, r"list_iterator already yields batches"),
        (Items(), 4, r"Items already yields batches"),
        (lambda: BATCHES, 4, r"function already yields batches"),
        (None, None, r"NoneType"),
        (17, None, r"int: 17"),
        (ROWS, 0, r"at least 1, got 0"),
        (ROWS, -2, r"at least 1, got -2"),
        (ROWS, 2.5, r"at least 1, got 2.5"),
        (ROWS, True, r"at least 1, got True"),
        (lambda context: BATCHES, None, r"without arguments.*distribute_datasets_from_function"),
    ],
)
def test_misuse_is_told_what_to_do(source, batch_size, says):
    with pytest.raises(ArgumentError, match=says):
        host_batches(source, batch_size)


@pytest.mark.parametrize(("made", "says"), [((ROWS, ROWS), r"batch_size="), (None, r"returned None, not batches")])
def test_a_function_must_return_batches(made, says):
    with pytest.raises(ArgumentError, match=says):
        list(host_batches(lambda: made))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ((ROWS, ROWS[:3]), r"The dataset.*disagree.*10 rows, leaf \[0\]; 3 rows"),
        (ROWS[:0], r"The dataset has zero rows"),
        ((ROWS, 3), r"leaf \[1\]: a scalar \(3\)"),
    ],
)
def test_arrays_are_checked_before_the_first_pass(arrays, says):
    with pytest.raises(BatchError, match=says):
        host_batches(arrays, batch_size=4)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (ROWS[:0], "Batch 2 of the dataset has zero rows"),
        (ROWS.astype(float), "(?s)Batch 2 .*int32.*float64"),
        ((ROWS, ROWS), "Batch 2 differs in structure"),
        (3, "Batch 2 of the dataset: a scalar"),
    ],
)
def test_a_bad_batch_is_named_after_the_good_ones(bad, says):
    batches = iter(host_batches([*BATCHES[:2], bad]))
    assert len(next(batches)) == len(next(batches)) == 4
    with pytest.raises(BatchError, match=says):
        next(batches)


def test_iterators_that_we_open_are_closed_and_the_users_are_not():
    closed = []

    def generate(name):
        try:
            yield from BATCHES
        finally:
            closed.append(name)

    theirs = generate("theirs")
    for source in (lambda: generate("ours"), theirs):
        batches = iter(host_batches(source))
        next(batches)
        batches.close()
    assert closed == ["ours"]
    assert next(theirs) is BATCHES[1]


def test_an_opened_source_is_unchecked_and_closed_like_a_pass():
    closed = []

    def generate():
        try:
            yield from ("no", "batches")
        finally:
            closed.append(True)

    ours, theirs = host_batches(generate), host_batches(generate())
    for batches in (ours, theirs):
        with batches.open_source() as opened:
            assert next(opened) == "no"
    assert closed == [True]
    assert next(opened) == "batches"
    with pytest.raises(BatchError, match="second pass"), theirs.open_source():
        pass
