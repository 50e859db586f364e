import jax
import numpy as np
import pytest

from replicax.dtensor import MATCH, UNSHARDED, DTensorDataset, Layout, create_mesh, fetch_layout
from replicax.errors import LayoutError
from tests.dtensor.row_datasets import ROWS, of_rows


@pytest.fixture
def mesh(two_by_three):
    return two_by_three


@pytest.mark.parametrize(
    ("layout", "batch_dim", "says"),
    [
        (["x", UNSHARDED], None, r"shards the batch by 'x', but no batch_dim is given. Pass batch_dim='x'"),
        ([UNSHARDED, UNSHARDED], "x", r"first entry of a layout must be batch_dim='x', got 'unsharded'"),
        (["y", UNSHARDED], "x", r"must be batch_dim='x', got 'y'"),
        ([MATCH, UNSHARDED], None, r"cannot say 'match'"),
        ([], "x", r"begins with an entry for its rows"),
        (["x"], "x", r"shape \(rows, 3\), of rank 2, and the layout is for rank 1"),
        (["x", UNSHARDED, UNSHARDED], "x", r"of rank 2, and the layout is for rank 3"),
        (["y", "x"], "y", r"has length 3, which 'x' .* cannot split into 2"),
        ([UNSHARDED, UNSHARDED], "z", r"'z' is not a dimension of Mesh\(x=2, y=3"),
        ([UNSHARDED, UNSHARDED], MATCH, r"cannot say 'match'"),
    ],
)
@pytest.mark.parametrize("source", [lambda rows: rows, list], ids=["array", "elements"])
def test_layouts_must_fit(mesh, source, layout, batch_dim, says):
    with pytest.raises(LayoutError, match=says):
        next(
            iter(
                DTensorDataset(
                    source(np.zeros((6, 3))),
                    mesh=mesh,
                    layouts=Layout(layout, mesh),
                    global_batch_size=6,
                    batch_dim=batch_dim,
                )
            )
        )


def test_layouts_must_be_nested_like_elements(mesh):
    layouts = {"x": Layout(["x"], mesh)}
    for source in ((ROWS, ROWS), [{"y": row} for row in ROWS]):
        with pytest.raises(LayoutError, match=r"(?s)must be a pytree like an element.*layouts: PyTreeDef"):
            next(iter(DTensorDataset(source, mesh=mesh, layouts=layouts, global_batch_size=4, batch_dim="x")))
    (batch,) = DTensorDataset(
        (ROWS, ROWS), mesh=mesh, layouts=layouts["x"], global_batch_size=12, batch_dim="x"
    )  # One layout is for all leaves.
    assert [fetch_layout(leaf) for leaf in batch] == [layouts["x"]] * 2


def test_layouts_must_be_for_the_mesh(mesh):
    other = create_mesh([("x", 2)], devices=jax.devices("cpu")[:2])
    with pytest.raises(LayoutError, match=r"for Mesh\(x=2, y=3, cpu\), but a layout is for another mesh"):
        DTensorDataset(ROWS, mesh=mesh, layouts=Layout(["x"], other), global_batch_size=4, batch_dim="x")


def test_the_batch_must_divide(mesh):
    with pytest.raises(LayoutError, match=r"global_batch_size=5 does not divide by 2, the size of batch_dim='x'"):
        of_rows(ROWS, mesh, 5)


def test_a_last_batch_that_does_not_divide_keeps_its_other_cuts(mesh):
    layout = Layout(["x", "y"], mesh)
    data = np.arange(5 * 3).reshape(5, 3)
    first, last = DTensorDataset(data, mesh=mesh, layouts=layout, global_batch_size=4, batch_dim="x")
    assert fetch_layout(first) == layout
    assert fetch_layout(last) == Layout([UNSHARDED, "y"], mesh)
    assert last.tolist() == data[4:].tolist()
