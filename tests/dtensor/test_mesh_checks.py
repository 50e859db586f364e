import jax
import numpy as np
import pytest

from replicax.dtensor import Mesh, create_mesh
from replicax.errors import MeshError

CPUS = jax.devices("cpu")


@pytest.mark.parametrize("name", ["", "1x", "a b", "a,b", "a+b", "a=b", "a|b", "unsharded", "match", None])
def test_bad_names_of_dimensions_are_refused(name):
    with pytest.raises(MeshError, match="Not a name for a mesh dimension"):
        create_mesh([(name, 8)])


@pytest.mark.parametrize(
    ("names", "devices", "message"),
    [
        (("a",), np.array(CPUS).reshape(2, 4), r"rank, got shape \(2, 4\)"),
        (("a", "b"), np.array(CPUS), r"\('a', 'b'\).*\(8,\)"),
        (("a",), np.array([], object), "non-empty"),
        (("a",), [1, 2], "jax.Device, got 1"),
        (("a",), [CPUS[0], CPUS[0]], "in a mesh only once"),
        (("a", "a"), np.array(CPUS).reshape(2, 4), "must differ"),
    ],
)
def test_a_mesh_is_made_of_as_many_dimensions_of_different_devices(names, devices, message):
    with pytest.raises(MeshError, match=message):
        Mesh(names, devices)


@pytest.mark.parametrize("label", ["a|b", 3])
def test_a_label_is_a_string_that_can_be_written_down(label):
    with pytest.raises(MeshError, match=r"without '|'"):
        create_mesh(mesh_name=label)


def test_one_name_may_be_given_as_a_string():
    assert Mesh("devices", CPUS).dim_names == ("devices",)
