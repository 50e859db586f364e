import copy
import itertools
import math
import pickle

import jax
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import NamedSharding, PartitionSpec

from replicax.dtensor import MATCH, UNSHARDED, Layout, Mesh, create_mesh, default_mesh, relayout
from replicax.errors import DeviceError, LayoutError, MeshError
from tests.dtensor.random_layouts import layouts

# Making layouts.


def test_something_else_than_a_mesh_is_refused():
    with pytest.raises(MeshError, match="Not a mesh: 'm'"):
        Layout(["x"], "m")


def test_a_layout_without_a_mesh_is_for_the_default_one(mesh):
    with pytest.raises(LayoutError, match="needs a mesh"):
        Layout(["x"])
    with default_mesh(mesh):
        assert Layout(["x"]) == Layout(["x"], mesh)


def test_meshes_of_jax_and_keras_are_taken(mesh, by_x):
    assert Layout(["x"], mesh.jax_mesh) == by_x
    assert Layout(["x"], keras.distribution.DeviceMesh((4, 2), ["x", "y"])) == by_x


def test_the_usual_layouts_have_names(mesh):
    assert Layout.replicated(mesh, 2) == Layout([UNSHARDED, UNSHARDED], mesh)
    assert Layout.replicated(mesh, 0) == Layout([], mesh)
    assert Layout.batch_sharded(mesh, "x", 2) == Layout(["x", UNSHARDED], mesh)
    assert Layout.batch_sharded(mesh, "x", 3, axis=1) == Layout([UNSHARDED, "x", UNSHARDED], mesh)
    assert Layout.batch_sharded(mesh, "x", 2, axis=-1) == Layout.inner_sharded(mesh, "x", 2)
    assert Layout.inner_sharded(mesh, "y", 2) == Layout([UNSHARDED, "y"], mesh)


@pytest.mark.parametrize("axis", [2, -3])
def test_a_batch_axis_outside_of_the_tensor_is_refused(mesh, axis):
    with pytest.raises(LayoutError, match=f"rank 2 has no axis {axis}"):
        Layout.batch_sharded(mesh, "x", 2, axis=axis)


def test_scalars_and_unknown_dimensions_cannot_be_cut(mesh):
    with pytest.raises(LayoutError, match="rank 0"):
        Layout.inner_sharded(mesh, "x", 0)
    with pytest.raises(LayoutError, match="'z'"):
        Layout.batch_sharded(mesh, "z", 2)


def test_deleting_dimensions(mesh):
    layout = Layout(["x", UNSHARDED, "y"], mesh)
    assert layout.delete([1]) == Layout(["x", "y"], mesh)
    assert layout.delete([0, -1]) == Layout([UNSHARDED], mesh)
    assert layout.delete([]) == layout
    for dims in ([3], [-4], [0, 5]):
        with pytest.raises(LayoutError, match=r"dimensions 0 to 2, cannot delete \["):
            layout.delete(dims)


# Facts.


def test_shape_is_the_meshes_and_num_shards_tells_how_often_a_tensor_is_cut(mesh):
    layout = Layout([UNSHARDED, "y", "x"], mesh)
    assert layout.rank == 3
    assert layout.shape == (4, 2)
    assert [layout.num_shards(axis) for axis in (0, 1, 2, -1)] == [1, 2, 4, 4]
    assert Layout([("y", "x")], mesh).num_shards(0) == 8
    with pytest.raises(LayoutError, match="no dimension 3"):
        layout.num_shards(3)
    with pytest.raises(LayoutError, match=r"Dimension 0.*only relayout knows"):
        Layout([MATCH], mesh).num_shards(0)


def test_replicated_and_batch_parallel_layouts_are_told(mesh):
    cases = {(): "replicated", ("unsharded",) * 2: "replicated", ("x", "unsharded"): "batch", (("x", "y"),): "batch"}
    cases |= {("x", "y"): "", ("unsharded", "x"): "", ("match",): "", ("x", "match"): ""}
    for specs, expected in cases.items():
        layout = Layout(specs, mesh)
        assert layout.is_fully_replicated() == (expected == "replicated")
        assert layout.is_batch_parallel() == (expected == "batch")


def test_a_mesh_dimension_of_size_one_counts_as_a_cut():
    layout = Layout(["x"], create_mesh([("x", 1)], devices=["cpu:0"]))
    assert layout.is_single_device()
    assert not layout.is_fully_replicated()
    assert layout != Layout.replicated(layout.mesh, 1)


def test_shapes_of_parts_and_of_the_whole(mesh):
    layout = Layout(["x", UNSHARDED, "y"], mesh)
    assert layout.local_shape((8, 3, 4)) == (2, 3, 2)
    assert layout.global_shape((2, 3, 2)) == (8, 3, 4)
    assert layout.local_shape_from_global_shape((0, 1, 2)) == (0, 1, 1)
    assert layout.global_shape_from_local_shape((1, 1, 1)) == (4, 1, 2)


def test_shapes_that_do_not_fit_are_refused(mesh):
    layout = Layout(["x", UNSHARDED], mesh)
    for ask in (layout.local_shape, layout.global_shape, layout.check_rank, layout.check_shape):
        with pytest.raises(LayoutError, match=r"rank 2, got shape \(8,\) of rank 1"):
            ask((8,))
    for ask in (layout.local_shape, layout.check_shape):
        with pytest.raises(LayoutError, match=r"Dimension 0 .*\(6, 2\) has length 6.*'x'.* 4 equal shards"):
            ask((6, 2))


@pytest.mark.parametrize(
    ("specs", "offsets"),
    [
        (["x", "unsharded"], [(0, 0)] * 3 + [(1, 0)] * 3),
        (["unsharded", "y"], [(0, 0), (0, 1), (0, 2)] * 2),
        (["y", "x"], [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]),
        ([("x", "y")], [(i,) for i in range(6)]),
        ([("y", "x")], [(0,), (2,), (4,), (1,), (3,), (5,)]),
        ([], [()] * 6),
    ],
)
def test_each_device_has_its_part(two_by_three, specs, offsets):
    assert Layout(specs, two_by_three).offset_to_shard() == offsets


def test_parts_are_counted_in_row_major_order(two_by_three):
    layout = Layout(["x", UNSHARDED, "y"], two_by_three)
    assert [layout.offset_tuple_to_global_index((i, 0, j)) for i in range(2) for j in range(3)] == list(range(6))
    assert Layout([], two_by_three).offset_tuple_to_global_index(()) == 0
    for offset in ((2, 0, 0), (0, 1, 0), (0, 0, -1), (0, 0)):
        with pytest.raises(LayoutError, match=r"\[2, 1, 3\] shards by dimension, so there is none at"):
            layout.offset_tuple_to_global_index(offset)


@settings(max_examples=60)
@given(layouts())
def test_parts_are_where_jax_puts_them(layout):
    part = (2,) * layout.rank
    shape = layout.global_shape(part)
    assert layout.local_shape(shape) == part
    slices = layout.to_sharding().devices_indices_map(shape)
    for device, offset in zip(layout.mesh.global_devices(), layout.offset_to_shard(), strict=True):
        starts = tuple((index.start or 0) // 2 for index in slices[device])
        assert starts == offset
    everywhere = itertools.product(*(range(layout.num_shards(axis)) for axis in range(layout.rank)))
    numbers = [layout.offset_tuple_to_global_index(offset) for offset in everywhere]
    assert numbers == list(range(math.prod(layout.num_shards(axis) for axis in range(layout.rank))))


# Being a value.


def test_a_layout_is_immutable(by_x):
    for attribute in ("mesh", "sharding_specs", "other"):
        with pytest.raises(AttributeError, match=attribute):
            setattr(by_x, attribute, None)


@settings(max_examples=60)
@given(layouts())
def test_text_and_pickles_bring_back_an_equal_layout(layout):
    for back in (Layout.from_string(layout.to_string()), pickle.loads(pickle.dumps(layout)), copy.deepcopy(layout)):
        assert back == layout
        assert hash(back) == hash(layout)
        assert back.mesh.name == layout.mesh.name


@settings(max_examples=60)
@given(layouts())
def test_shardings_bring_back_an_equal_layout(layout):
    assert Layout.from_sharding(layout.to_sharding(), layout.rank) == layout


def test_layouts_are_written_as_tensorflow_writes_them(mesh):
    text = Layout(["x", UNSHARDED, MATCH], mesh).to_string()
    assert text == f"sharding_specs:x,unsharded,match, mesh:{mesh.to_string()}"
    assert Layout.from_string(text).sharding_specs == ("x", UNSHARDED, MATCH)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("x,y", LayoutError, "is written.*'x,y'"),
        (5, LayoutError, "is written.* 5"),
        ("sharding_specs:z, mesh:|x=1|0|0|cpu:0", LayoutError, "'z'"),
        ("sharding_specs:x, mesh:x=1", MeshError, "x=1"),
        ("sharding_specs:x, mesh:|x=1|0|0|cpu:77", DeviceError, "cpu:77"),
    ],
)
def test_text_of_another_form_is_refused(text, error, message):
    with pytest.raises(error, match=message):
        Layout.from_string(text)


def test_layouts_differ_by_entries_mesh_and_kind(mesh, by_x):
    others = [Layout(["y"], mesh), Layout(["x"], create_mesh()), Layout(["x", UNSHARDED], mesh), "x", None]
    assert by_x not in others
    assert Layout([("x", "y")], mesh) != Layout([("y", "x")], mesh)
    assert repr(Layout([("x", "y"), UNSHARDED], mesh)) == "Layout([x+y, unsharded], Mesh(x=4, y=2, cpu))"


# Converting.


def test_shardings_become_layouts(mesh):
    def layout(*spec, rank=2):
        return Layout.from_sharding(NamedSharding(mesh.jax_mesh, PartitionSpec(*spec)), rank).sharding_specs

    assert layout() == (UNSHARDED, UNSHARDED)
    assert layout("x") == ("x", UNSHARDED)
    assert layout((), ("y",)) == (UNSHARDED, "y")
    assert layout(PartitionSpec.UNCONSTRAINED, ("x", "y")) == (MATCH, ("x", "y"))
    with pytest.raises(LayoutError, match="shards 2 dimensions, but the tensor has 1"):
        layout("x", "y", rank=1)


def test_other_shardings_have_no_layout():
    with pytest.raises(LayoutError, match=r"Only a NamedSharding.*SingleDeviceSharding"):
        Layout.from_sharding(jax.sharding.SingleDeviceSharding(jax.devices()[0]), 1)


def test_keras_layouts_are_taken_and_made(mesh):
    layout = Layout(["x", UNSHARDED], mesh)
    keras_layout = layout.to_keras()
    assert keras_layout.axes == ("x", None)
    assert keras_layout.backend_layout.is_equivalent_to(layout.to_sharding(), 2)
    assert Layout.from_keras(keras_layout) == layout
    backwards = Layout(["x"], create_mesh(devices=jax.devices()[::-1]))
    assert Layout.from_keras(backwards.to_keras()) == backwards


@pytest.mark.parametrize("entry", [MATCH, ("x", "y")])
def test_keras_cannot_say_everything(mesh, entry):
    with pytest.raises(LayoutError, match="cannot express"):
        Layout([entry], mesh).to_keras()


def test_a_keras_layout_needs_a_mesh():
    for other in (keras.distribution.TensorLayout(["x"]), "x"):
        with pytest.raises(LayoutError, match=r"Not a keras.distribution.TensorLayout"):
            Layout.from_keras(other)


def test_arrays_can_be_put_by_the_sharding(mesh):
    placed = jax.device_put(np.arange(8), Layout([("y", "x")], mesh).to_sharding())
    assert placed.addressable_shards[1].data.tolist() == [4]


def test_one_dimension_is_deleted_by_its_number():
    layout = Layout(["x", UNSHARDED, "y"], create_mesh([("x", 4), ("y", 2)]))
    assert layout.delete(0) == layout.delete([0]) == Layout([UNSHARDED, "y"], layout.mesh)
    assert layout.delete(-1) == Layout(["x", UNSHARDED], layout.mesh)
    with pytest.raises(LayoutError, match=r"dimensions 0 to 2, cannot delete \[3\]"):
        layout.delete(3)


def test_layouts_of_one_device():
    mesh = Mesh.from_device("cpu:3")
    layout = Layout.from_single_device_mesh(mesh, rank=2)
    assert layout == Layout.from_device("cpu:3", rank=2) == Layout.from_string(layout.to_string())
    assert (layout.rank, layout.type, layout.is_single_device()) == (2, "single_device", True)
    assert relayout(np.ones((2, 3)), layout).devices() == {jax.devices()[3]}
    mesh = create_mesh([("x", 8)])
    assert Layout.replicated(mesh, 1).type == "static"
    assert Layout.replicated(mesh, 1).to_parted() == Layout.replicated(mesh, 1)
    with pytest.raises(LayoutError, match=r"has 8 devices, not one.*replicated\(mesh, rank\)"):
        Layout.from_single_device_mesh(mesh)
