from __future__ import annotations

import gc
import threading
import time

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.dtensor import UNSHARDED, DTensorDataset, Layout, create_mesh, default_mesh, fetch_layout, unpack
from replicax.errors import ArgumentError, BatchError, ContextError
from tests.dtensor.row_datasets import ROWS, numbers, of_rows


@pytest.fixture
def mesh(two_by_three):
    return two_by_three


# Sources.


class Items:
    """Like a torch `Dataset`: items and their number."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return ROWS[index]


class TfDataset:
    """What a `tf.data.Dataset` looks like."""

    def __len__(self):
        return 12

    def __iter__(self):
        raise AssertionError("elements would be TensorFlow's tensors")

    def as_numpy_iterator(self):
        return iter(ROWS)


def torch_items():
    torch = pytest.importorskip("torch")

    class TorchItems(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return torch.tensor(index, dtype=torch.int32)

    return TorchItems()


def torch_loader(batch_size):
    items = torch_items()
    return pytest.importorskip("torch").utils.data.DataLoader(items, batch_size=batch_size)


SOURCES = {
    "array": (lambda: ROWS, 3),
    "JAX array": (lambda: jnp.asarray(ROWS), 3),
    "list": (lambda: list(ROWS), 3),
    "list of ints": (lambda: ROWS.tolist(), 3),
    "list of JAX arrays": (lambda: list(jnp.asarray(ROWS)), 3),
    "function": (lambda: lambda: iter(ROWS), None),
    "generator function": (lambda: lambda: (row for row in ROWS), None),
    "items": (Items, 3),
    "tf.data": (TfDataset, 3),
    "grain map": (lambda: grain.MapDataset.source(ROWS), 3),
    "grain iter": (lambda: grain.MapDataset.source(ROWS).to_iter_dataset(), None),
    "torch dataset": (torch_items, 3),
    "torch loader": (lambda: torch_loader(None), 3),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_of_elements_is_batched_on_every_pass(mesh, name):
    make, length = SOURCES[name]
    dataset = of_rows(make(), mesh)
    for _ in range(2):
        batches = list(dataset)
        assert [batch.tolist() for batch in batches] == ROWS.reshape(3, 4).tolist()
        assert all(batch.dtype == np.int32 and fetch_layout(batch) == Layout(["x"], mesh) for batch in batches)
    if length is not None:
        assert len(dataset) == length


@pytest.mark.parametrize(
    "make",
    [
        lambda: list(ROWS.reshape(3, 4)),
        lambda: lambda: iter(ROWS.reshape(3, 4)),
        lambda: grain.MapDataset.source(ROWS).batch(4),
        lambda: torch_loader(4),
    ],
    ids=["list", "function", "grain", "torch"],
)
def test_every_source_of_batches(mesh, make):
    dataset = of_rows(make(), mesh, dataset_already_batched=True)
    assert numbers(dataset) == numbers(dataset) == ROWS.reshape(3, 4).tolist()


def test_an_iterator_passes_once_and_is_not_closed(mesh):
    source = (row for row in ROWS)
    dataset = of_rows(source, mesh, prefetch=0)
    assert dataset.element_spec.shape == (4,)
    with iter(dataset) as batches:
        assert next(batches).tolist() == [0, 1, 2, 3]
    assert next(source) == 4
    with pytest.raises(BatchError, match=r"second pass"):
        next(iter(dataset))


def test_a_source_that_is_used_up_is_told(mesh):
    source = iter(ROWS)
    dataset = of_rows(lambda: source, mesh)
    assert len(numbers(dataset)) == 3
    with pytest.raises(BatchError, match=r"gave batches before, but none in this pass"):
        numbers(dataset)


def test_batches_are_their_own(mesh):
    rows = ROWS.copy()
    batches = list(of_rows(rows, mesh))
    rows[:] = -1
    assert [batch.tolist() for batch in batches] == ROWS.reshape(3, 4).tolist()


# What each device gets.


def test_devices_along_other_dimensions_get_the_same_rows(mesh):
    steps = [[part.tolist() for part in unpack(batch)] for batch in of_rows(ROWS, mesh)]
    assert steps == [[[i, i + 1]] * 3 + [[i + 2, i + 3]] * 3 for i in (0, 4, 8)]


def test_order_on_a_mesh_of_one_dimension():
    mesh = create_mesh([("x", 6)], devices=jax.devices("cpu")[:6])
    assert [[part.item() for part in unpack(batch)] for batch in of_rows(ROWS, mesh, 6)] == [
        [*range(6)],
        [*range(6, 12)],
    ]


def test_other_dimensions_are_cut_too(mesh):
    images = np.arange(4 * 2 * 6).reshape(4, 2, 6)
    layout = Layout(["x", UNSHARDED, "y"], mesh)
    (batch,) = DTensorDataset(images, mesh=mesh, layouts=layout, global_batch_size=4, batch_dim="x")
    for position, part in enumerate(unpack(batch)):
        i, j = mesh.coords(position)
        np.testing.assert_array_equal(part, images[2 * i : 2 * i + 2, :, 2 * j : 2 * j + 2])


def test_without_a_batch_dim_every_device_gets_whole_batches(mesh):
    for batch, expected in zip(of_rows(ROWS, mesh, 5, None), ([*range(5)], [*range(5, 10)], [10, 11]), strict=True):
        assert [part.tolist() for part in unpack(batch)] == [expected] * 6


def test_several_mesh_dimensions_may_cut_the_batch(mesh):
    dataset = of_rows(ROWS, mesh, 6, ("x", "y"))
    assert [part.tolist() for part in unpack(next(iter(dataset)))] == [[i] for i in range(6)]


@pytest.mark.parametrize("kind", ["jax", "default"])
def test_any_kind_of_mesh(mesh, kind):
    with default_mesh(mesh):
        layout = Layout(["x"])
        given = mesh.jax_mesh if kind == "jax" else rx.dtensor.get_default_mesh()
    (batch,) = DTensorDataset(ROWS, mesh=given, layouts=layout, global_batch_size=12, batch_dim="x")
    assert fetch_layout(batch) == layout


def test_dtypes_are_jaxs(mesh):
    assert [batch.dtype for batch in of_rows(ROWS.astype(">f8"), mesh)] == [np.float32] * 3
    with jax.enable_x64(True):
        assert [batch.dtype for batch in of_rows(ROWS.astype(">f8"), mesh)] == [np.float64] * 3


# The last batch.


@pytest.mark.parametrize("source", [lambda rows: rows, list], ids=["array", "elements"])
@pytest.mark.parametrize(("rows", "last"), [(10, (5, 1)), (9, (3, 1)), (8, None)])
def test_nothing_is_lost_of_a_last_batch(source, rows, last):
    mesh = create_mesh([("x", 2)], devices=jax.devices("cpu")[:2])
    data = np.arange(rows)
    dataset = of_rows(source(data), mesh, 8)
    batches = list(dataset)
    assert len(dataset) == len(batches)
    assert np.concatenate(batches).tolist() == data.tolist()
    if last is not None:
        divides = (rows - 8) % 2 == 0
        assert fetch_layout(batches[-1]) == Layout(["x" if divides else UNSHARDED], mesh)


@pytest.mark.parametrize("source", [lambda rows: rows, list], ids=["array", "elements"])
def test_drop_leaves_the_last_batch_out(mesh, source):
    dataset = of_rows(source(ROWS), mesh, 10, remainder="drop")
    assert numbers(dataset) == [[*range(10)]]
    assert len(dataset) == 1
    with pytest.raises(BatchError, match=r"remainder='drop' left nothing.*global_batch_size=20"):
        next(iter(of_rows(source(ROWS), mesh, 20, remainder="drop")))


def test_drop_leaves_a_small_batch_out(mesh):
    dataset = of_rows([ROWS[:6], ROWS[6:10]], mesh, 6, remainder="drop", dataset_already_batched=True)
    assert numbers(dataset) == [[*range(6)]]


# Specification and length.


def test_element_spec_is_of_the_global_batch(mesh):
    layouts = {"x": Layout(["x", "y"], mesh), "y": Layout(["x"], mesh)}
    elements = [{"x": np.zeros(3), "y": i} for i in range(3)]
    dataset = DTensorDataset(elements, mesh=mesh, layouts=layouts, global_batch_size=4, batch_dim="x")
    spec = dataset.element_spec
    assert spec == {
        "x": jax.ShapeDtypeStruct((4, 3), np.float32, sharding=layouts["x"].to_sharding()),
        "y": jax.ShapeDtypeStruct((4,), np.int32, sharding=layouts["y"].to_sharding()),
    }
    assert dataset.element_spec is spec
    with pytest.raises(BatchError, match=r"no batch"):
        _ = of_rows([], mesh).element_spec


def test_an_unknown_length_is_a_type_error(mesh):
    dataset = of_rows(lambda: iter(ROWS), mesh)
    with pytest.raises(TypeError, match=r"unknown before its end"):
        len(dataset)
    assert dataset
    assert len(of_rows([ROWS[:4], ROWS[4:7]], mesh, dataset_already_batched=True)) == 2


# Misuse.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"size": 0}, r"at least 1, got 0"),
        ({"size": 2.0}, r"at least 1, got 2.0"),
        ({"size": True}, r"at least 1, got True"),
        ({"prefetch": -1}, r"at least 0, got -1"),
        ({"remainder": "pad"}, r"one of \('exact', 'drop'\), got 'pad'"),
        ({"dataset_already_batched": True}, r"leave it out"),
        ({"source": None}, r"NoneType"),
        ({"source": 3}, r"int: 3"),
    ],
)
def test_misuse_is_told_what_to_do(mesh, options, says):
    with pytest.raises(ArgumentError, match=says):
        of_rows(options.pop("source", ROWS), mesh, **options)


def test_layouts_and_datasets_are_told_from_others(mesh):
    with pytest.raises(ArgumentError, match=r"Expected an rx.dtensor.Layout, got str"):
        DTensorDataset(ROWS, mesh=mesh, layouts={"x": "x"}, global_batch_size=4)
    with pytest.raises(ArgumentError, match=r"DTensorDataset already"):
        of_rows(of_rows(ROWS, mesh), mesh)


def test_arrays_must_agree_in_their_rows(mesh):
    with pytest.raises(BatchError, match=r"disagree in their number of rows.*12 rows.*3 rows"):
        of_rows((ROWS, ROWS[:3]), mesh)
    with pytest.raises(BatchError, match=r"Batch 0 of the dataset.*disagree"):
        numbers(of_rows([(ROWS[:4], ROWS[:3])], mesh, dataset_already_batched=True))


def test_next_inside_a_program_is_refused(mesh):
    with iter(of_rows(ROWS, mesh)) as batches:
        with pytest.raises(ContextError, match=r"inside a compiled function"):
            rx.function(lambda: next(batches))()
        assert next(batches).tolist() == [0, 1, 2, 3]


# Threads.


def prefetching():
    return [thread for thread in threading.enumerate() if thread.name == "replicax-prefetch"]


def soon(condition, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


@pytest.mark.parametrize("prefetch", [None, 0, 1, 5])
def test_prefetching_changes_nothing(mesh, prefetch):
    assert numbers(of_rows(list(ROWS), mesh, prefetch=prefetch)) == ROWS.reshape(3, 4).tolist()


def test_so_many_batches_are_taken_ahead(mesh):
    taken = []
    with iter(of_rows(lambda: (taken.append(row) or row for row in range(100)), mesh, prefetch=3)) as batches:
        next(batches)
        assert soon(lambda: len(taken) >= 16)
        time.sleep(0.05)
        assert len(taken) <= 20


def test_the_thread_ends_with_its_iterator(mesh):
    closed = []

    def endless():
        try:
            while True:
                yield 0
        finally:
            closed.append(True)

    dataset = of_rows(endless, mesh)
    batches = iter(dataset)
    next(batches)
    batches.close()
    assert not prefetching()
    assert closed == [True]
    next(iter(dataset))
    gc.collect()
    assert soon(lambda: not prefetching())
    assert soon(lambda: closed == [True, True])


@pytest.mark.parametrize("prefetch", [0, 2])
def test_errors_of_the_source_come_after_the_batches_before(mesh, prefetch):
    def failing():
        yield from ROWS[:9]
        raise ZeroDivisionError("mine")

    batches = iter(of_rows(failing, mesh, prefetch=prefetch))
    assert [next(batches).tolist() for _ in range(2)] == ROWS[:8].reshape(2, 4).tolist()
    with pytest.raises(ZeroDivisionError, match="mine"):
        next(batches)
    assert next(batches, None) is None


def test_iterators_do_not_interfere_and_the_end_poisons_nothing(mesh):
    along_x, along_y = of_rows(ROWS, mesh, 6), of_rows(-ROWS, mesh, 6, "y")
    pairs = zip(along_x, along_y, along_x, strict=True)
    for step, (a, b, c) in enumerate(pairs):
        rows = [*range(6 * step, 6 * step + 6)]
        assert a.tolist() == c.tolist() == rows
        assert (-b).tolist() == rows
        assert (fetch_layout(a), fetch_layout(b)) == (Layout(["x"], mesh), Layout(["y"], mesh))
    batches = iter(along_x)
    last = list(batches)[-1]
    assert next(batches, None) is None
    assert int((last + 1).sum()) == 57
    assert int(next(iter(along_x)).sum()) == 15


def test_it_feeds_a_training_step(mesh):
    weight = rx.dtensor.DVariable(np.zeros(3, np.float32), layout=Layout(["y"], mesh))
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    data = x, x @ np.array([1.0, -2.0, 3.0], np.float32)
    layouts = Layout(["x", "y"], mesh), Layout(["x"], mesh)
    dataset = DTensorDataset(data, mesh=mesh, layouts=layouts, global_batch_size=8, batch_dim="x")

    @rx.function
    def step(x, y):
        loss, gradient = rx.value_and_grad(lambda: jnp.mean((x @ weight.value - y) ** 2), weight)()
        weight.assign_sub(0.2 * gradient)
        return loss

    losses = [float(step(*batch)) for _ in range(10) for batch in dataset]
    assert losses[-1] < 1e-2 * losses[0]
    assert fetch_layout(weight.value) == weight.layout
