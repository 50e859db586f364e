import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.dtensor import (
    UNSHARDED,
    Layout,
    call_with_layout,
    check_layout,
    copy_to_mesh,
    fetch_layout,
    relayout,
    stateless_normal,
    stateless_truncated_normal,
    stateless_uniform,
)
from replicax.errors import ArgumentError, LayoutError

DRAWS = {
    "uniform": lambda *args, **kwargs: stateless_uniform(*args, minval=-1.5, maxval=3.7, **kwargs),
    "integers": lambda *args, **kwargs: stateless_uniform(*args, minval=-9, maxval=9, dtype=jnp.int32, **kwargs),
    "normal": lambda *args, **kwargs: stateless_normal(*args, mean=1.3, stddev=2.7, **kwargs),
    "truncated": lambda *args, **kwargs: stateless_truncated_normal(*args, mean=1.3, stddev=2.7, **kwargs),
}


# call_with_layout.


def test_results_are_made_in_the_layout(mesh):
    layout = Layout(["x", "y"], mesh)
    zeros, (ones, twos) = call_with_layout(
        lambda a, b: (a * 0, [jnp.ones((4, 2)), b]), layout, np.ones((8, 4)), b=jnp.full((4, 4), 2.0)
    )
    for result in (zeros, ones, twos):
        assert fetch_layout(result) == layout
    np.testing.assert_array_equal(twos, np.full((4, 4), 2))


def test_without_a_layout_the_function_is_called_as_it_is():
    assert call_with_layout(lambda x, *, y: (x, y), None, "a", y="b") == ("a", "b")


def test_bad_calls_are_refused(mesh, pair, by_x):
    with pytest.raises(ArgumentError, match="calls a function, got int: 3"):
        call_with_layout(3, by_x)
    with pytest.raises(ArgumentError, match="must return arrays, got str"):
        call_with_layout(lambda: "a", by_x)
    with pytest.raises(ArgumentError, match=r"Expected an rx.dtensor.Layout, got str"):
        call_with_layout(jnp.zeros, "x", (8,))
    with pytest.raises(LayoutError, match=r"length 6.* 4 equal"):
        call_with_layout(jnp.zeros, by_x, (6,))
    with pytest.raises(LayoutError, match="rank 1, got shape"):
        call_with_layout(jnp.zeros, by_x, (8, 8))


def test_arguments_that_live_on_other_devices_are_refused(mesh, pair, by_x):
    elsewhere = relayout(np.arange(8.0), Layout(["x"], pair))
    for argument in (elsewhere, jax.device_put(np.arange(8.0), jax.devices()[3])):
        with pytest.raises(LayoutError, match=r"An argument of the function lives on .* made on Mesh"):
            call_with_layout(jnp.negative, by_x, argument)
    moved = copy_to_mesh(elsewhere, Layout([UNSHARDED], mesh))
    np.testing.assert_array_equal(call_with_layout(jnp.negative, by_x, moved), -np.arange(8.0))


def test_the_same_program_is_used_again(by_x, compilations):
    def filled(array, value, shape=(8,)):
        return jnp.full(shape, value) + array

    call_with_layout(filled, by_x, np.zeros(8), 1)
    with compilations() as compiled:
        for _ in range(2):
            result = call_with_layout(filled, by_x, np.ones(8), 1)
    assert compiled == []
    np.testing.assert_array_equal(result, np.full(8, 2))


@pytest.mark.parametrize(("first", "second"), [(1, 1.0), (1, True), (0.0, -0.0), ((1,), [1])])
def test_values_that_are_equal_but_not_the_same_make_their_own_programs(by_x, first, second):
    def described(value):
        seen.append(value)
        return jnp.full(8, value[0] if isinstance(value, (list, tuple)) else value)

    seen = []
    for value in (first, second, first):
        result = call_with_layout(described, by_x, value)
    assert [repr(value) for value in seen] == [repr(first), repr(second)]
    assert np.signbit(np.asarray(call_with_layout(described, by_x, second))[0]) == (str(second) == "-0.0")
    assert result.shape == (8,)


def test_other_layouts_make_their_own_programs(mesh, by_x):
    for layout in (by_x, Layout(["y"], mesh), Layout([("x", "y")], mesh)):
        check_layout(call_with_layout(jnp.ones, layout, (8,)), layout)


def test_arguments_that_cannot_be_hashed_are_taken(by_x):
    class Unhashable:
        __hash__ = None
        value = 3

    result = call_with_layout(lambda thing: jnp.full(8, thing.value), by_x, Unhashable())
    np.testing.assert_array_equal(result, np.full(8, 3))


def test_the_function_is_not_kept_alive(by_x):
    def fn():
        return jnp.zeros(8)

    alive = weakref.ref(fn)
    call_with_layout(fn, by_x)
    del fn
    gc.collect()
    assert alive() is None


def test_no_device_ever_holds_the_whole(mesh):
    layout = Layout([("x", "y"), UNSHARDED], mesh)
    before = {id(array) for array in jax.live_arrays()}
    result = call_with_layout(jnp.ones, layout, (1 << 12, 64))
    made = [array for array in jax.live_arrays() if id(array) not in before]
    assert {shard.data.shape for shard in result.addressable_shards} == {(1 << 9, 64)}
    assert all(shard.data.nbytes <= result.nbytes // 8 for array in made for shard in array.addressable_shards)
    drawn = jax.jit(lambda key: jax.random.uniform(key, (1 << 12, 64)), out_shardings=layout.to_sharding())
    with jax.threefry_partitionable(True):
        memory = drawn.lower(jax.random.key(0)).compile().memory_analysis()
    assert memory.output_size_in_bytes == result.nbytes // 8
    assert memory.temp_size_in_bytes < result.nbytes // 2


@pytest.mark.parametrize("compiled", [jax.jit, rx.function], ids=["jit", "function"])
def test_in_traced_code_results_are_relaid_whatever_their_length(by_x, compiled):
    def fn():
        return call_with_layout(jnp.ones, by_x, (8,)), call_with_layout(jnp.arange, by_x, 5)

    even, uneven = compiled(fn)()
    check_layout(even, by_x)
    np.testing.assert_array_equal(uneven, np.arange(5))


# Random numbers.


@pytest.mark.daily(2)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("partitionable", [True, False])
def test_random_numbers_are_the_same_for_every_layout(mesh, pair, draw, partitionable):
    expected = np.asarray(draw((8, 12), 7))
    layouts = [Layout(specs, mesh) for specs in (["x", "y"], [UNSHARDED, UNSHARDED], [UNSHARDED, ("y", "x")][::-1])]
    with jax.threefry_partitionable(partitionable):
        np.testing.assert_array_equal(draw((8, 12), 7), expected)
        for layout in (*layouts, Layout(["x", UNSHARDED], pair)):
            drawn = draw((8, 12), 7, layout=layout)
            assert fetch_layout(drawn) == layout
            np.testing.assert_array_equal(drawn, expected)


def test_random_numbers_are_those_of_jax():
    with jax.threefry_partitionable(True):
        np.testing.assert_array_equal(stateless_uniform((8,), 3), jax.random.uniform(jax.random.key(3), (8,)))
        np.testing.assert_array_equal(stateless_normal((8,), 3), jax.random.normal(jax.random.key(3), (8,)))


def test_random_numbers_are_distributed_as_asked():
    uniform = np.asarray(stateless_uniform((4096,), 1, minval=-2, maxval=5))
    assert -2 <= uniform.min() < -1.9
    assert 4.9 < uniform.max() < 5
    normal = np.asarray(stateless_normal((4096,), 1, mean=3, stddev=2))
    assert abs(normal.mean() - 3) < 0.1
    assert abs(normal.std() - 2) < 0.1
    truncated = np.asarray(stateless_truncated_normal((4096,), 1, mean=3, stddev=2))
    assert -1 <= truncated.min() < -0.5
    assert 6.5 < truncated.max() <= 7
    integers = np.asarray(stateless_uniform((4096,), 1, minval=-3, maxval=3, dtype=jnp.int32))
    assert set(integers) == set(range(-3, 3))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, "float16"])
def test_random_numbers_have_the_dtype(by_x, dtype):
    assert stateless_normal((8,), 1, dtype=dtype, layout=by_x).dtype == jnp.dtype(dtype)


def test_seeds_are_ints_pairs_or_keys(mesh, by_x):
    expected = np.asarray(stateless_uniform((8,), 3))
    pair = jax.random.key_data(jax.random.key(3))
    for seed in (np.int64(3), jnp.int32(3), jax.random.key(3), list(map(int, pair)), np.asarray(pair), pair):
        np.testing.assert_array_equal(stateless_uniform((8,), seed, layout=by_x), expected)
    assert np.any(np.asarray(stateless_uniform((8,), [3, 3])) != expected)
    elsewhere = jax.device_put(jax.random.key(3), jax.devices()[3])
    np.testing.assert_array_equal(stateless_uniform((8,), elsewhere, layout=by_x), expected)


@pytest.mark.parametrize("seed", [True, None, "a", 1.5, [1.0, 2.0], [1, 2, 3], []])
def test_other_seeds_are_refused(seed):
    with pytest.raises(ArgumentError, match="A seed is an int, a pair of ints or a JAX random key, got"):
        stateless_uniform((8,), seed)


def test_a_seed_may_be_an_argument_of_a_traced_function(by_x):
    fn = rx.function(lambda seed: stateless_uniform((8,), seed, layout=by_x))
    np.testing.assert_array_equal(fn(3), stateless_uniform((8,), 3))
    np.testing.assert_array_equal(fn(np.array([4, 5])), stateless_uniform((8,), [4, 5]))


def test_random_numbers_that_do_not_fit_the_layout_are_refused(by_x):
    with pytest.raises(LayoutError, match="length 6"):
        stateless_uniform((6,), 1, layout=by_x)
    with pytest.raises(ArgumentError, match="Layout"):
        stateless_uniform((6,), 1, layout="x")
