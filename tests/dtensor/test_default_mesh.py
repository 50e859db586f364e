import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import replicax as rx
from replicax.dtensor import (
    UNSHARDED,
    Layout,
    create_mesh,
    default_mesh,
    device_name,
    fetch_layout,
    get_default_mesh,
    relayout,
    run_on,
)
from replicax.errors import LayoutError, MeshError


def test_outside_of_every_block_there_is_no_default_mesh():
    assert get_default_mesh() is None
    with pytest.raises(LayoutError, match="needs a mesh"):
        Layout([UNSHARDED])


def test_blocks_nest_and_the_previous_mesh_comes_back(mesh, pair):
    with default_mesh(mesh) as entered:
        assert entered is get_default_mesh() is mesh
        with default_mesh(pair):
            assert get_default_mesh() is pair
            assert Layout(["x"]).mesh is pair
        assert get_default_mesh() is mesh
    assert get_default_mesh() is None


def test_the_previous_mesh_comes_back_after_an_error(mesh):
    def fail():
        with default_mesh(mesh):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert get_default_mesh() is None
    assert jnp.ones(3).devices() == {jax.devices()[0]}


def test_new_arrays_are_replicated_over_it(mesh):
    with default_mesh(mesh):
        for array in (jnp.ones(3), jnp.array([1, 2, 3]), jnp.ones_like(np.ones(3))):
            assert fetch_layout(array) == Layout.replicated(mesh, 1)
    assert jnp.ones(3).devices() == {jax.devices()[0]}


def test_a_bare_partition_spec_names_its_dimensions(mesh):
    with default_mesh(mesh):
        result = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec("x")))(np.ones(8))
    assert fetch_layout(result) == Layout(["x"], mesh)


def test_meshes_of_jax_are_taken(mesh):
    with default_mesh(mesh.jax_mesh) as entered:
        assert entered == mesh


@pytest.mark.parametrize("other", [None, "x", 3])
def test_something_else_is_refused(other):
    with pytest.raises(MeshError, match="Not a mesh"), default_mesh(other):
        pass


def test_in_a_traced_function_it_is_the_mesh_of_layouts(mesh, by_x):
    @rx.function
    def fn(x):
        with default_mesh(mesh):
            return relayout(x, Layout(["x"]))

    assert fetch_layout(fn(np.ones(8))) == by_x
    assert get_default_mesh() is None


def test_each_thread_has_its_own(mesh):
    seen = []
    with default_mesh(mesh):
        thread = threading.Thread(target=lambda: seen.append(get_default_mesh()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_run_on_is_the_old_name(mesh):
    assert run_on is default_mesh


def test_the_device_of_plain_arrays_has_a_name(mesh):
    assert device_name() == "cpu:0"
    with jax.default_device(jax.devices()[3]):
        assert device_name() == "cpu:3"
    with default_mesh(create_mesh(devices=["cpu:4", "cpu:5"])):
        assert device_name() == "cpu:0"
    assert jax.jit(lambda: int(device_name().partition(":")[2]))() == 0
