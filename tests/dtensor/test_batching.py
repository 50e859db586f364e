import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.dtensor import UNSHARDED, DTensorDataset, Layout, fetch_layout
from replicax.errors import BatchError
from tests.dtensor.row_datasets import ROWS, numbers, of_rows


@pytest.fixture
def mesh(two_by_three):
    return two_by_three


def test_elements_are_nests_of_arrays_and_numbers(mesh):
    elements = [
        {"x": (np.full((2, 3), i, np.float32), jnp.full((3,), i, jnp.bfloat16)), "y": float(i), "z": i > 4}
        for i in range(6)
    ]
    cut, whole = Layout(["x", UNSHARDED, "y"], mesh), Layout(["x"], mesh)
    layouts = {"x": (cut, Layout(["x", "y"], mesh)), "y": whole, "z": whole}
    dataset = DTensorDataset(elements, mesh=mesh, layouts=layouts, global_batch_size=6, batch_dim="x")
    (batch,) = dataset
    assert [leaf.shape for leaf in batch["x"]] == [(6, 2, 3), (6, 3)]
    assert [leaf.dtype for leaf in jax.tree.leaves(batch)] == [np.float32, jnp.bfloat16, np.float32, np.bool_]
    assert jax.tree.map(fetch_layout, batch) == layouts
    assert batch["y"].tolist() == batch["x"][1][:, 2].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_source_may_use_its_memory_again(mesh):
    def reusing(shape):
        buffer = np.zeros(shape, np.int32)
        for i in range(12):
            buffer[...] = i
            yield buffer

    batches = list(of_rows(lambda: reusing(()), mesh))
    assert [batch.tolist() for batch in batches] == ROWS.reshape(3, 4).tolist()
    batches = list(of_rows(lambda: reusing(4), mesh, dataset_already_batched=True))
    assert [batch.tolist() for batch in batches] == [[i] * 4 for i in range(12)]


@pytest.mark.parametrize("remainder", ["exact", "drop"])
def test_batches_must_have_the_global_size(mesh, remainder):
    options = {"remainder": remainder, "dataset_already_batched": True}
    with pytest.raises(BatchError, match=r"Batch 0 of the dataset has 8 rows, more than global_batch_size=4"):
        numbers(of_rows([ROWS[:8]], mesh, **options))
    with pytest.raises(BatchError, match=r"Batch 1 of the dataset has 2 rows, fewer than.*=4, but batch 2 follows"):
        numbers(of_rows([ROWS[:4], ROWS[4:6], ROWS[6:10]], mesh, **options))


@pytest.mark.parametrize(
    ("elements", "says"),
    [
        ([np.zeros(3), np.zeros(4)], r"(?s)Element 1 of the dataset differs.*float64\[3\].*float64\[4\].*pad them"),
        ([1, 2.0], r"(?s)Element 1 .*before: .*int64\[\].*element 1: .*float64\[\]"),
        ([(1, 2), (1,)], r"Element 1 of the dataset differs in structure"),
        (["a"], r"Element 0 of the dataset: a str is not an array: 'a'"),
        ([{"x": np.array(["a"])}], r"Element 0 of the dataset, leaf \['x'\]: values of dtype <U1"),
        ([None], r"Element 0 of the dataset holds no array"),
    ],
)
def test_bad_elements_are_named(mesh, elements, says):
    with pytest.raises(BatchError, match=says):
        numbers(DTensorDataset(elements, mesh=mesh, layouts=Layout([UNSHARDED], mesh), global_batch_size=4))
