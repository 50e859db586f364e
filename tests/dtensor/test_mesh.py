import copy
import math
import pickle

import jax
import keras
import pytest
from hypothesis import given, settings

from replicax.dtensor import Mesh, create_mesh
from replicax.errors import DeviceError, MeshError
from tests.dtensor.random_layouts import meshes

CPUS = jax.devices("cpu")


# Facts.


def test_devices_are_in_row_major_order():
    mesh = create_mesh([("x", 2), ("y", 3)], devices=CPUS[:6])
    assert mesh.strides == (3, 1)
    assert mesh.coords(4) == (1, 1)
    assert mesh.device_location(4) == {"x": 1, "y": 1}
    assert mesh.global_device_ids().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert mesh.unravel_index() == [{"x": x, "y": y} for x in range(2) for y in range(3)]
    assert mesh.jax_mesh.devices[1, 1] == CPUS[4]


@settings(max_examples=30)
@given(meshes())
def test_coordinates_times_strides_are_the_position(mesh):
    for i in range(mesh.size):
        assert sum(c * s for c, s in zip(mesh.coords(i), mesh.strides, strict=True)) == i
        assert mesh.jax_mesh.devices[mesh.coords(i)] == mesh.global_devices()[i]
    assert math.prod(mesh.shape()) == mesh.size


def test_dimensions_are_asked_for_by_name(mesh):
    assert mesh.dim_size("y") == 2
    assert mesh["x"] == ("x", 4)
    assert mesh.contains_dim("x")
    assert "y" in mesh
    assert "z" not in mesh
    with pytest.raises(MeshError, match=r"no dimension 'z'.*x=4, y=2"):
        mesh.dim_size("z")
    with pytest.raises(MeshError, match="'z'"):
        mesh["z"]


@pytest.mark.parametrize("position", [8, -1, 1.0, True, "0"])
def test_positions_outside_of_the_mesh_are_refused(mesh, position):
    with pytest.raises(MeshError, match=str(position)):
        mesh.coords(position)


def test_a_process_finds_its_own_devices(mesh):
    assert mesh.local_devices() == mesh.global_devices()
    assert mesh.num_local_devices() == mesh.size == 8
    assert mesh.local_device_ids() == list(range(8))
    assert mesh.local_device_locations() == mesh.unravel_index()
    assert mesh.min_global_device_id() == 0
    assert not mesh.is_remote()


def test_a_process_without_devices_in_the_mesh_is_remote(mesh, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 7)
    assert mesh.is_remote()
    assert mesh.local_device_locations() == []
    with pytest.raises(MeshError, match="Process 7 has no device"):
        mesh.min_global_device_id()


def test_a_mesh_of_one_device(mesh):
    alone = create_mesh([("x", 1)], devices=["cpu:5"])
    assert alone.is_single_device()
    assert alone.single_device == CPUS[5]
    assert not mesh.is_single_device()
    with pytest.raises(MeshError, match="8 devices, not one"):
        _ = mesh.single_device


def test_the_host_mesh_of_cpus_is_the_mesh(mesh):
    assert mesh.host_mesh() is mesh


def test_the_host_mesh_of_accelerators_is_over_cpus_and_keeps_shape_and_label(monkeypatch):
    mesh = create_mesh([("x", 2), ("y", 2)], "label", CPUS[4:])
    monkeypatch.setattr(Mesh, "device_type", lambda self: "gpu")
    host = mesh.host_mesh()
    assert (host.name, host.dim_names, host.shape()) == ("label", ("x", "y"), (2, 2))
    assert host.global_devices() == CPUS[:4]
    monkeypatch.setattr("replicax.dtensor.mesh._cpus_of", lambda process: CPUS[:1])
    with pytest.raises(DeviceError, match=r"set_virtual_devices\(4\)"):
        mesh.host_mesh()


# Being a value.


def test_a_mesh_is_immutable(mesh):
    for attribute in ("name", "dim_names", "jax_mesh", "other"):
        with pytest.raises(AttributeError, match=attribute):
            setattr(mesh, attribute, "z")


def test_the_label_takes_no_part_in_equality():
    named, plain = create_mesh(mesh_name="a"), create_mesh()
    assert named == plain
    assert hash(named) == hash(plain)
    assert named.name == "a"


@pytest.mark.parametrize(
    "other",
    [create_mesh([("y", 8)]), create_mesh([("x", 4), ("y", 2)]), create_mesh(devices=CPUS[::-1]), "x", None],
)
def test_meshes_with_other_dimensions_or_devices_differ(other):
    assert create_mesh() != other


def test_meshes_are_written_as_tensorflow_writes_them():
    text = create_mesh([("x", 1), ("y", 2)], "m", CPUS[2:4]).to_string()
    assert text == "m|x=1,y=2|0,1|0,1|cpu:2,cpu:3"


@settings(max_examples=50)
@given(meshes())
def test_text_and_pickles_bring_back_an_equal_mesh_and_its_label(mesh):
    for back in (Mesh.from_string(mesh.to_string()), pickle.loads(pickle.dumps(mesh)), copy.deepcopy(mesh)):
        assert back == mesh
        assert hash(back) == hash(mesh)
        assert back.name == mesh.name


def test_a_mesh_without_dimensions_comes_back_too():
    alone = create_mesh([], devices=["cpu:1"])
    assert Mesh.from_string(alone.to_string()) == alone


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=2", "is written.*'x=2'"),
        (3, "is written.* 3"),
        ("|x|0|0|cpu:0", "dimensions are written.*'x'"),
        ("|x=a|0|0|cpu:0", "dimensions are written.*'x=a'"),
        ("|x=2|0|0|cpu:0", "needs 2 devices"),
        ("|x=1,x=1|0|0|cpu:0", "must differ"),
        ("|x=-1|0|0|cpu:0", "needs -1 devices"),
        ("|x=-1,y=-1|0|0|cpu:0", "'x=-1,y=-1'"),
    ],
)
def test_text_of_another_form_is_refused(text, message):
    with pytest.raises(MeshError, match=message):
        Mesh.from_string(text)


@pytest.mark.parametrize("device", ["cpu:99", "quantum:0", "cpu"])
def test_text_naming_devices_that_are_not_here_is_refused(device):
    with pytest.raises(DeviceError, match=f"{device}.*does not exist"):
        Mesh.from_string(f"|x=1|0|0|{device}")


def test_meshes_of_jax_and_keras_are_taken(mesh):
    assert Mesh.of(mesh) is mesh
    assert Mesh.of(mesh.jax_mesh) == mesh
    assert Mesh.of(jax.make_mesh((4, 2), ("x", "y"))) == mesh
    assert Mesh.of(keras.distribution.DeviceMesh((4, 2), ["x", "y"])) == mesh
    for other in ("x", None, mesh.jax_mesh.abstract_mesh):
        with pytest.raises(MeshError, match="Not a mesh"):
            Mesh.of(other)


def test_a_dimension_has_a_name_and_a_size():
    dimension = create_mesh([("x", 4), ("y", 2)])["y"]
    assert (dimension.name, dimension.size) == ("y", 2) == dimension


def test_the_mesh_of_one_device_has_no_dimensions():
    mesh = Mesh.from_device("cpu:1")
    assert (mesh.dim_names, mesh.shape(), mesh.size, mesh.strides) == ((), (), 1, ())
    assert mesh.single_device == mesh.local_devices()[0] == jax.devices()[1]
    assert mesh == Mesh.from_string(mesh.to_string())
    assert repr(mesh) == "Mesh(cpu)"
    assert mesh.coords(0) == ()
    with pytest.raises(DeviceError):
        Mesh.from_device("cpu:99")
