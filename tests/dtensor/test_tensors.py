import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

import replicax as rx
from replicax.dtensor import (
    MATCH,
    UNSHARDED,
    DVariable,
    Layout,
    Mesh,
    check_layout,
    copy_to_mesh,
    create_mesh,
    default_mesh,
    fetch_layout,
    is_dtensor,
    pack,
    relayout,
    relayout_like,
    unpack,
)
from replicax.errors import ArgumentError, LayoutError, ProgramError, TensorError
from tests.dtensor.random_layouts import layouts


def buffers(array):
    return {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}


def parts_of(array, layout):
    """The parts that the devices hold, in the mesh's order."""
    by_device = {shard.device: np.asarray(shard.data) for shard in array.addressable_shards}
    return [by_device[device] for device in layout.mesh.global_devices()]


# Packing and unpacking.


@pytest.mark.parametrize("as_part", [np.asarray, jnp.asarray, list], ids=["numpy", "jax", "list"])
def test_parts_go_to_the_devices_in_the_meshs_order(mesh, as_part):
    layout = Layout([UNSHARDED, "x"], mesh)
    parts = [as_part(np.float32([[i // 2], [10 + i // 2]])) for i in range(8)]
    tensor = pack(parts, layout)
    assert tensor.shape == (2, 4)
    assert tensor.sharding == layout.to_sharding()
    np.testing.assert_array_equal(tensor, [[0, 1, 2, 3], [10, 11, 12, 13]])


@settings(max_examples=25)
@given(layouts())
def test_unpacking_gives_back_the_parts(layout):
    shape = layout.global_shape((2,) * layout.rank)
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    parts = parts_of(jax.device_put(whole, layout.to_sharding()), layout)
    tensor = pack(parts, layout)
    np.testing.assert_array_equal(tensor, whole)
    unpacked = unpack(tensor)
    assert [part.devices() for part in unpacked] == [{device} for device in layout.mesh.global_devices()]
    for part, expected in zip(unpacked, parts, strict=True):
        np.testing.assert_array_equal(part, expected)


def test_parts_may_come_from_any_device_and_from_variables(pair):
    layout = Layout(["x"], pair)
    elsewhere = jax.device_put(jnp.ones(2), jax.devices()[5])
    np.testing.assert_array_equal(pack([elsewhere, rx.Variable(np.zeros(2, np.float32))], layout), [1, 1, 0, 0])


def test_a_tensor_shares_no_memory_with_its_parts(by_x):
    parts = [np.full(1024, i // 2, np.float32) for i in range(8)]
    given_by_jax = [jnp.asarray(part) for part in parts]
    packed, packed_from_jax = pack(parts, by_x), pack(given_by_jax, by_x)
    for part in parts:
        part[:] = -1
    for part in given_by_jax:
        part.delete()
    for tensor in (packed, packed_from_jax):
        np.testing.assert_array_equal(tensor[::1024], [0, 1, 2, 3])


def test_unpacked_parts_outlive_the_tensor(by_x):
    tensor = relayout(np.arange(8.0), by_x)
    parts = unpack(tensor)
    jax.jit(lambda x: x + 1, donate_argnums=0)(tensor)
    assert tensor.is_deleted()
    assert [part.tolist() for part in parts[::2]] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "each of the 8 devices.*got 0"),
        ([np.zeros(2)] * 7, "got 7"),
        ([np.zeros(2)] * 7 + [np.zeros(3)], r"one shape and dtype.*\(2,\), \(3,\)"),
        ([np.zeros(2)] * 7 + [np.zeros(2, int)], "float64.*int64"),
        (np.zeros((8, 2)), "a list.*ndarray"),
        (["a"] * 8, "got str: 'a'"),
    ],
)
def test_parts_that_make_no_tensor_are_refused(by_x, parts, message):
    with pytest.raises(TensorError, match=message):
        pack(parts, by_x)


def test_parts_of_another_rank_are_refused(mesh, by_x):
    with pytest.raises(LayoutError, match="rank 1, got shape"):
        pack([np.zeros((2, 2))] * 8, by_x)
    with pytest.raises(LayoutError, match="only relayout knows"):
        pack([np.zeros(2)] * 8, Layout([MATCH], mesh))
    with pytest.raises(ArgumentError, match="Layout"):
        pack([np.zeros(2)] * 8, None)


def test_equal_parts_in_host_memory_are_checked(mesh, by_x):
    parts = [np.full(2, i // 2) for i in range(8)]
    pack(parts, by_x)
    parts[5] = parts[5] + 1
    with pytest.raises(TensorError, match=r"parts 4 and 5 are the same shard.*differ"):
        pack(parts, by_x)
    with pytest.raises(TensorError, match=r"parts 0 and 3 are the same shard"):
        pack([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], Layout([], mesh))


def test_equal_parts_on_devices_are_checked_on_demand(by_x):
    parts = [jnp.full(2, i // 2) for i in range(8)]
    pack(parts, by_x, check_replicas=True)
    parts[5] = parts[5] + 1
    pack(parts, by_x)
    with pytest.raises(TensorError, match=r"parts 4 and 5 are the same shard.*differ"):
        pack(parts, by_x, check_replicas=True)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64, ml_dtypes.bfloat16])
def test_replicas_may_be_equally_undefined(by_x, dtype):
    pack([np.full(2, np.nan, dtype)] * 8, by_x, check_replicas=True)


def test_only_dtensors_are_unpacked(by_x):
    for other in (jnp.ones(8), np.ones(8), [1], 3, DVariable(np.ones(8), layout=by_x)):
        with pytest.raises(TensorError, match="unpack takes a DTensor"):
            unpack(other)


# Changing the layout.


def test_relayout_changes_the_place_and_not_the_numbers(mesh, pair):
    numbers = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    source = relayout(numbers, Layout(["x", "y"], mesh))
    for specs in (["y", "x"], [UNSHARDED, UNSHARDED], [("x", "y"), UNSHARDED], [UNSHARDED, "x"]):
        layout = Layout(specs, mesh)
        for value in (source, numbers, numbers.tolist(), jnp.asarray(numbers)):
            moved = relayout(value, layout)
            assert moved.sharding == layout.to_sharding()
            np.testing.assert_array_equal(moved, numbers)
    smaller = relayout(source, Layout(["x", UNSHARDED], pair))
    assert smaller.devices() == set(pair.global_devices())


def test_relayout_does_not_go_on_using_numpys_memory(by_x):
    numbers = np.zeros(4096, np.float32)
    tensor = relayout(numbers, by_x)
    numbers[:] = 1
    assert not np.any(tensor)


def test_match_keeps_the_cut(mesh, pair):
    source = relayout(np.ones((8, 8)), Layout(["x", UNSHARDED], mesh))
    assert fetch_layout(relayout(source, Layout([MATCH, "y"], mesh))).sharding_specs == ("x", "y")
    assert fetch_layout(relayout(source, Layout([MATCH, MATCH], mesh))).sharding_specs == ("x", UNSHARDED)
    assert fetch_layout(relayout(np.ones((8, 8)), Layout([MATCH, "y"], mesh))).sharding_specs == (UNSHARDED, "y")
    with pytest.raises(LayoutError, match="'x' comes more than once"):
        relayout(source, Layout([MATCH, "x"], mesh))
    with pytest.raises(LayoutError, match="on another mesh"):
        relayout(source, Layout([MATCH, "x"], pair))


def test_relayout_refuses_what_does_not_fit(mesh, by_x):
    for change in (relayout, copy_to_mesh):
        with pytest.raises(LayoutError, match="rank 1"):
            change(np.ones((8, 8)), by_x)
        with pytest.raises(LayoutError, match=r"length 6.* 4 equal"):
            change(np.ones(6), by_x)


def test_relayout_like_another_tensor_or_variable(mesh, by_x):
    for other in (relayout(np.ones(8), by_x), DVariable(np.ones(8), layout=by_x)):
        assert relayout_like(np.arange(4), other).sharding == by_x.to_sharding()
    with pytest.raises(TensorError, match="must be a DTensor or a DVariable, got 3"):
        relayout_like(np.arange(4), 3)
    with pytest.raises(TensorError, match="fetch_layout takes a DTensor"):
        relayout_like(np.arange(4), jnp.ones(3))


def test_a_copy_shares_no_buffer(mesh, by_x):
    everywhere = Layout.replicated(mesh, 1)
    for source in (relayout(np.arange(8.0), by_x), relayout(np.arange(8.0), everywhere), jnp.arange(8.0)):
        for layout in (by_x, everywhere):
            copied = copy_to_mesh(source, layout)
            assert copied.sharding == layout.to_sharding()
            assert not buffers(copied) & buffers(source)


def test_a_copy_may_go_to_another_mesh(by_x, pair):
    copied = copy_to_mesh(relayout(np.arange(8.0), by_x), Layout(["x"], pair))
    assert fetch_layout(copied) == Layout(["x"], pair)
    np.testing.assert_array_equal(copied, np.arange(8.0))


# In traced functions.


@pytest.mark.parametrize("compiled", [jax.jit, rx.function], ids=["jit", "function"])
@pytest.mark.parametrize("length", [1, 5, 8])
def test_in_traced_code_any_length_can_be_cut(mesh, by_x, compiled, length):
    numbers = np.arange(length, dtype=np.float32)

    def fn(x):
        constant = relayout(numbers, by_x)
        return jnp.cumsum(relayout(x * 2, Layout([("x", "y")], mesh))) + constant

    np.testing.assert_array_equal(compiled(fn)(numbers), np.cumsum(2 * numbers) + numbers)


def test_in_traced_code_relayout_decides_how_a_result_is_cut(mesh, by_x):
    source = relayout(np.arange(8.0), Layout(["y"], mesh))
    result = jax.jit(lambda x: relayout(x + 1, by_x))(source)
    check_layout(result, by_x)
    kept = jax.jit(lambda x: relayout(x + 1, Layout([MATCH], mesh)))(source)
    np.testing.assert_array_equal(kept, np.arange(8.0) + 1)
    with pytest.raises(LayoutError, match="rank 1"):
        jax.jit(lambda x: relayout(x, by_x))(np.ones((8, 8)))


def test_relayout_has_a_gradient_even_of_uneven_lengths(mesh, by_x):
    def loss(x):
        return jnp.sum(relayout(x, Layout([("y", "x")], mesh)) ** 2)

    for x in (relayout(np.arange(8.0), by_x), np.arange(5, dtype=np.float32)):
        np.testing.assert_array_equal(jax.jit(jax.grad(loss))(x), 2 * np.asarray(x))
    gradient = jax.grad(loss)(relayout(np.arange(8.0), by_x))
    np.testing.assert_array_equal(gradient, 2 * np.arange(8.0))


@pytest.mark.parametrize(
    "ask",
    [
        lambda x, layout: pack([x] * 8, layout),
        lambda x, layout: pack([np.ones(2)] * 8, layout),
        lambda x, layout: unpack(x),
        lambda x, layout: fetch_layout(x),
        lambda x, layout: is_dtensor(x),
        lambda x, layout: check_layout(x, layout),
        lambda x, layout: relayout_like(np.ones(8), x),
    ],
    ids=["pack", "pack_constants", "unpack", "fetch_layout", "is_dtensor", "check_layout", "relayout_like"],
)
def test_traced_values_have_no_layout_and_no_parts(by_x, ask):
    x = relayout(np.ones(8), by_x)
    for compiled in (jax.jit, rx.function):
        with pytest.raises(ProgramError, match="was called while a function was being traced"):
            compiled(lambda x: ask(x, by_x))(x)


def test_constants_of_traced_functions_cannot_be_unpacked_there(by_x):
    x = relayout(np.ones(8), by_x)
    with pytest.raises(ProgramError, match="unpack was called"):
        jax.jit(lambda: unpack(x))()


def test_a_variable_has_its_layout_in_traced_code_too(by_x):
    variable = DVariable(np.arange(8.0), layout=by_x)

    @rx.function
    def fn():
        assert fetch_layout(variable) == by_x
        assert is_dtensor(variable)
        return relayout_like(variable * 2, variable)

    check_layout(fn(), by_x)


# Asking for the layout.


def test_arrays_over_a_mesh_are_dtensors(mesh, by_x):
    tensor = relayout(np.ones(8), by_x)
    assert is_dtensor(tensor)
    assert fetch_layout(tensor) == by_x
    assert is_dtensor(DVariable(np.ones(8), layout=by_x))
    assert fetch_layout(tensor + tensor) == by_x
    assert fetch_layout(jnp.sum(tensor)) == Layout([], mesh)


@pytest.mark.parametrize("other", [np.ones(3), jnp.ones(3)])
def test_other_arrays_are_none(other):
    assert not is_dtensor(other)
    with pytest.raises(TensorError, match="fetch_layout takes a DTensor"):
        fetch_layout(other)


@pytest.mark.parametrize("other", [3, "x", None, [1]])
def test_what_is_no_array_has_no_layout(by_x, other):
    assert not is_dtensor(other)
    assert fetch_layout(other) is None
    with pytest.raises(TensorError, match="Expected a DTensor"):
        check_layout(other, by_x)


def test_checking_a_layout(mesh, by_x):
    tensor = relayout(np.ones((8, 8)), Layout(["x", UNSHARDED], mesh))
    check_layout(tensor, Layout(["x", UNSHARDED], mesh))
    check_layout(tensor, Layout([MATCH, UNSHARDED], mesh))
    check_layout(DVariable(np.ones(8), layout=by_x), by_x)
    for wrong in (["y", UNSHARDED], [MATCH, "y"], ["x", "y"], [UNSHARDED, UNSHARDED]):
        with pytest.raises(LayoutError, match=r"has the layout Layout\(\[x, unsharded\].*expected"):
            check_layout(tensor, Layout(wrong, mesh))
    with pytest.raises(LayoutError, match="rank 1"):
        check_layout(tensor, by_x)


def test_layouts_agree_that_place_everything_alike():
    mesh = create_mesh([("x", 8), ("one", 1)])
    tensor = relayout(np.ones((8, 8)), Layout(["x", "one"], mesh))
    check_layout(tensor, Layout(["x", UNSHARDED], mesh))


def test_parts_can_be_handled_inside_a_default_mesh(mesh, by_x):
    with default_mesh(mesh):
        tensor = pack([jnp.full(2, i // 2) for i in range(8)], by_x)
        assert [part.tolist() for part in unpack(tensor)][::2] == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_the_gradient_of_a_relayout_has_the_layout_of_the_input():
    mesh = create_mesh([("x", 4), ("y", 2)])
    there, here = Layout([UNSHARDED, "x"], mesh), Layout(["x", "y"], mesh)
    x = relayout(np.arange(32.0).reshape(8, 4), here)
    gradient = jax.grad(lambda x: jnp.sum(relayout(x, there) ** 2))(x)
    assert fetch_layout(gradient) == here
    np.testing.assert_array_equal(gradient, 2 * x)
    _, gradient = jax.value_and_grad(lambda x: jnp.sum(relayout(relayout(x, there), here) ** 2))(x)
    assert fetch_layout(gradient) == here
    second = jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(relayout(x, there) ** 3))(x)))(x)
    np.testing.assert_allclose(second, 6 * x)
    assert fetch_layout(second) == here


def test_a_variable_has_the_layout_that_it_lives_in():
    kernel = keras.Variable(np.ones((8, 4), "float32"))
    for variable in (kernel, rx.Variable(1.0)):
        assert not is_dtensor(variable)
        with pytest.raises(TensorError, match="takes a DTensor"):
            fetch_layout(variable)
    strategy = rx.FullyShardedStrategy([f"cpu:{i}" for i in range(4)], min_size=1)
    with strategy.scope():
        kernel, own = keras.Variable(np.ones((8, 4), "float32")), rx.Variable(np.ones((3, 5)))
        components = rx.Variable(0.0, synchronization="on_read", aggregation="sum")
    mesh = Mesh.of(strategy.mesh)
    assert fetch_layout(kernel) == Layout(["replica", UNSHARDED], mesh)
    assert fetch_layout(own) == Layout.replicated(mesh, 2)
    assert is_dtensor(kernel)
    assert not is_dtensor(components)
    assert relayout_like(np.zeros((8, 4)), kernel).sharding == fetch_layout(kernel).to_sharding()
    made = keras.Variable(kernel.value)
    made.assign(relayout(np.ones((8, 4), "float32"), Layout([UNSHARDED, "replica"], mesh)))
    assert fetch_layout(made) == Layout([UNSHARDED, "replica"], mesh)


def test_a_program_runs_on_one_set_of_devices():
    here = create_mesh([("x", 2)], devices=["cpu:0", "cpu:1"])
    there = Layout(["x"], create_mesh([("x", 2)], devices=["cpu:2", "cpu:3"]))
    w = DVariable([1.0, 2.0], layout=Layout(["x"], here))

    @rx.function
    def moved():
        return copy_to_mesh(w * 2, there)

    with pytest.raises(LayoutError, match=r"'moved' is one compiled program.*Move values"):
        moved()
    np.testing.assert_array_equal(w.numpy(), [1.0, 2.0])
    assert fetch_layout(copy_to_mesh(w * 2, there)) == there
