import jax
import pytest

from replicax.dtensor import create_distributed_mesh, create_mesh
from replicax.errors import DeviceError, MeshError

CPUS = jax.devices("cpu")


def test_by_default_a_mesh_has_one_dimension_over_all_devices():
    mesh = create_mesh()
    assert (mesh.dim_names, mesh.shape(), mesh.global_devices()) == (("x",), (8,), jax.devices())


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        ([("a", 4), ("b", 2)], (4, 2)),
        ({"a": 4, "b": 2}, (4, 2)),
        ([("a", -1)], (8,)),
        ([("a", 2), ("b", -1)], (2, 4)),
        ([("a", -1), ("b", 8)], (1, 8)),
        ([("a", 1), ("b", 8), ("c", 1)], (1, 8, 1)),
    ],
)
def test_dimensions_are_pairs_or_a_dict_and_one_size_may_be_left_open(dims, shape):
    assert create_mesh(dims).shape() == shape


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ([("a", 3)], "needs 3 devices.* there are 8"),
        ([("a", 3), ("b", -1)], "needs 3 devices"),
        ([("a", 16), ("b", -1)], "needs 16 devices"),
        ([], "needs 1 devices"),
        ([("a", 0)], "positive ints.*'a': 0"),
        ([("a", -2), ("b", -4)], "positive ints"),
        ([("a", True)], "positive ints.*True"),
        ([("a", 8.0)], "positive ints.*8.0"),
        ([("a", -1), ("b", -1)], "one of them may be -1"),
        ([("a", 4), ("a", 2)], "must differ.*'a', 'a'"),
        ([("a", 4, 2)], "pairs of a name and a size"),
        (8, "pairs of a name and a size.* 8"),
        ("ab", "pairs"),
        ([(1, 8)], "Not a name.* 1"),
    ],
)
def test_bad_dimensions_are_refused(dims, message):
    with pytest.raises(MeshError, match=message):
        create_mesh(dims)


def test_devices_are_named_or_given():
    assert create_mesh([("x", 2)], devices=["cpu:3", CPUS[1]]).global_devices() == [CPUS[3], CPUS[1]]
    assert create_mesh(device_type="CPU").device_type() == "cpu"


def test_devices_that_do_not_exist_are_refused():
    with pytest.raises(DeviceError, match="cpu:99"):
        create_mesh([("x", 1)], devices=["cpu:99"])
    with pytest.raises(DeviceError, match="no devices of type 'tpu'"):
        create_mesh(device_type="tpu")
    with pytest.raises(DeviceError, match="no devices of type 3"):
        create_mesh(device_type=3)
    with pytest.raises(DeviceError, match="must be of type 'gpu'"):
        create_mesh([("x", 1)], devices=["cpu:0"], device_type="gpu")


# Of all clients. What several make is in `test_clients.py`.


def test_the_mesh_of_one_client_is_of_its_devices():
    mesh = create_distributed_mesh({"x": 4, "y": -1}, "mine", device_type="CPU")
    assert mesh == create_mesh([("x", 4), ("y", 2)], devices=CPUS)
    assert mesh.name == "mine"
    two = create_distributed_mesh([("x", 2)], local_devices=["cpu:3", CPUS[1]])
    assert two.global_devices() == [CPUS[3], CPUS[1]]
    with pytest.raises(MeshError, match=r"needs 3 devices"):
        create_distributed_mesh([("x", 3)], device_type="cpu")
    with pytest.raises(DeviceError, match=r"No client has a device of type 'tpu'"):
        create_distributed_mesh([("x", 8)], device_type="tpu")
