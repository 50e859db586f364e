import pytest
from jax.sharding import PartitionSpec

from replicax.dtensor import MATCH, UNSHARDED, Layout
from replicax.errors import LayoutError


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (["z"], r"'z' is not a dimension of Mesh\(x=4, y=2, cpu\)"),
        (["x", "x"], "'x' comes more than once"),
        ([("x", "y"), "y"], "'y' comes more than once"),
        ([("x", "z")], "'z' is not"),
        ([("x", UNSHARDED)], "'unsharded' is not"),
        ([None], "None is not"),
        ([3], "3 is not"),
        ("x", "such as.*'x'"),
        (None, "None"),
        ({"x"}, "such as"),
    ],
)
def test_bad_entries_are_refused(mesh, specs, message):
    with pytest.raises(LayoutError, match=message):
        Layout(specs, mesh)


def test_entries_are_kept_as_a_tuple(mesh):
    assert Layout(["x", UNSHARDED], mesh).sharding_specs == ("x", "unsharded")
    assert Layout([["x", "y"], UNSHARDED], mesh).sharding_specs == (("x", "y"), "unsharded")
    assert Layout([("x",), ()], mesh).sharding_specs == ("x", "unsharded")


@pytest.mark.parametrize("rank", [-1, 1.0, True, "2"])
def test_a_bad_rank_is_refused(mesh, rank):
    with pytest.raises(LayoutError, match=f"`rank` must be an int.*{rank}"):
        Layout.replicated(mesh, rank)


def test_entries_become_a_partition_spec(mesh):
    assert Layout(["x", UNSHARDED], mesh).partition_spec == PartitionSpec("x")
    assert Layout([UNSHARDED, ("x", "y")], mesh).partition_spec == PartitionSpec(None, ("x", "y"))
    assert Layout([MATCH], mesh).partition_spec == PartitionSpec(PartitionSpec.UNCONSTRAINED)
