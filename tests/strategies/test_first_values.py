"""First values that are made in parts: the numbers of one device, and never the whole on a device."""

from __future__ import annotations

import contextlib

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import example, given, settings

import replicax as rx
from replicax.contracts.variable_access import array_of
from replicax.program.first_values import traced_value
from replicax.strategies.first_values import FirstValues

INITIALIZERS = {
    "glorot": lambda seed: keras.initializers.GlorotUniform(seed),
    "he": lambda seed: keras.initializers.HeNormal(seed),
    "normal": lambda seed: keras.initializers.RandomNormal(0.3, 0.7, seed),
    "truncated": lambda seed: keras.initializers.TruncatedNormal(-0.37, 1.3, seed),
    "uniform": lambda seed: keras.initializers.RandomUniform(-0.3, 0.6, seed),
    "constant": lambda seed: keras.initializers.Constant(0.1),
    "identity": lambda seed: keras.initializers.Identity(1.7),
    "orthogonal": lambda seed: keras.initializers.Orthogonal(seed=seed),
    "function": lambda seed: lambda shape, dtype: jax.random.normal(jax.random.key(7), shape, dtype) / 3 + 0.1,
    "array": lambda seed: lambda shape, dtype: np.arange(np.prod(shape)).reshape(shape).astype(dtype),
    "not traced": lambda seed: lambda shape, dtype: keras.ops.ones(shape, dtype) * float(jnp.ones(())),
}
#: A product and a sum, which a compiled program rounds once.
ROUNDED_ONCE = {"normal", "truncated", "function"}
SHAPES = [(16, 24), (8, 3), (5, 48), (9, 9), (3, 16, 8)]


@pytest.fixture(scope="module")
def strategies():
    """Strategies that cut variables: over all devices, over some, and over two axes."""
    return {
        "sharded": rx.FullyShardedStrategy(min_size=8),
        "three": rx.FullyShardedStrategy(3, min_size=8),
        "one": rx.FullyShardedStrategy(1, min_size=8),
        "two axes": rx.LayoutStrategy(mesh_shape={"batch": 4, "model": 2}, layout=by_shape()),
    }


def by_shape():
    return {"v0": (None, "model"), "v1": ("batch", None), "v2": (None, ("batch"))}


def variables(kinds, shape, dtype, seeds):
    """Returns variables with one seed generator, and its state."""
    generator = keras.random.SeedGenerator(5)
    made = []
    for i, (kind, seed) in enumerate(zip(kinds, seeds, strict=True)):
        initializer = INITIALIZERS[kind](generator if seed is None else seed)
        made.append(keras.Variable(initializer, shape=shape, dtype=dtype, name=f"v{i}"))
    return [*made, generator.state]


def same_numbers(variable, expected, are_rounded_once):
    value, wanted = np.asarray(array_of(variable)), np.asarray(array_of(expected))
    assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
    if not are_rounded_once:
        assert value.tobytes() == wanted.tobytes()
        return
    # Of numbers that cancel each other the last place of the larger one is left.
    last_place = float(jnp.finfo(value.dtype).eps) * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(value.astype("float64"), wanted.astype("float64"), rtol=0, atol=2 * last_place)


def check(strategy, kinds, shape, dtype, seeds):
    expected = variables(kinds, shape, dtype, seeds)
    with strategy.scope():
        made = variables(kinds, shape, dtype, seeds)
    for variable, wanted, kind in zip(made, expected, [*kinds, "state"], strict=True):
        same_numbers(variable, wanted, kind in ROUNDED_ONCE)
        sharding = strategy.placement.variable_sharding(variable)
        if sharding.shard_shape(wanted.shape) != wanted.shape:
            assert array_of(variable).sharding == sharding


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", ["sharded", "two axes"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_numbers_are_those_of_one_device(strategies, name, dtype):
    kinds = [kind for kind in INITIALIZERS if dtype == "float32" or kind != "orthogonal"][:3]
    check(strategies[name], kinds, (16, 24), dtype, [1, None, 2])


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", ["orthogonal", "function", "array", "not traced"])
def test_so_they_are_of_any_function(strategies, kind):
    check(strategies["sharded"], [kind], (16, 24), "float32", [1])


@pytest.mark.nightly
@settings(max_examples=60)
@given(
    name=st.sampled_from(["sharded", "three", "one", "two axes"]),
    kinds=st.lists(st.sampled_from(sorted(INITIALIZERS)), min_size=3, max_size=3),
    shape=st.sampled_from([(16, 24), (48, 16), (24, 8)]),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    seeds=st.lists(st.none() | st.integers(0, 2**31), min_size=3, max_size=3),
)
@example("sharded", ["normal", "normal", "truncated"], (16, 24), "float16", [None, None, 3])
def test_numbers_are_those_of_one_device_for_all(strategies, name, kinds, shape, dtype, seeds):
    if dtype != "float32":
        kinds = ["normal" if kind == "orthogonal" else kind for kind in kinds]  # JAX decomposes no 16 bits.
    check(strategies[name], kinds, shape, dtype, seeds)


@pytest.mark.daily(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_variable_is_cut_from_its_first_value_on(strategies, shape):
    def sevenths():
        return jnp.arange(np.prod(shape), dtype="float32").reshape(shape) / 7

    with strategies["sharded"].scope():
        variable = keras.Variable("glorot_uniform", shape=shape)
        mine = rx.Variable(sevenths)
    cut = any(length % 8 == 0 for length in shape)
    for each in (variable, mine):
        sizes = {shard.data.size for shard in array_of(each).addressable_shards}
        assert sizes == {np.prod(shape) // 8 if cut else np.prod(shape)}
    np.testing.assert_array_equal(mine.numpy(), sevenths())


@pytest.mark.parametrize("make", [keras.Variable, rx.Variable])
@pytest.mark.parametrize("to", [np.asarray, jnp.asarray])
def test_an_array_of_the_users_is_cut_and_stays_the_users(strategies, make, to):
    array = to(np.arange(16 * 8, dtype="float32").reshape(16, 8))
    with strategies["sharded"].scope():
        variable = make(array)
    assert array_of(variable).sharding.shard_shape((16, 8)) == (2, 8)

    @rx.function
    def step():
        variable.assign(variable.value + 1)

    with strategies["sharded"].scope():
        step()
    np.testing.assert_array_equal(np.asarray(variable.value), np.asarray(array) + 1)
    np.testing.assert_array_equal(np.asarray(array), np.arange(16 * 8).reshape(16, 8))


def test_a_numpy_array_that_changes_later_changes_no_variable(strategies):
    array = np.zeros((16, 8), "float32")
    with strategies["sharded"].scope():
        made = [rx.Variable(array), keras.Variable(array), rx.Variable(array, dtype="float16")]
    array += 1
    for variable in made:
        np.testing.assert_array_equal(np.asarray(variable.value), np.zeros((16, 8)))


def test_programs_are_shared_by_variables_that_differ_in_seeds(strategies):
    strategy = rx.FullyShardedStrategy(min_size=8)
    with strategy.scope():
        for seed in range(5):
            keras.Variable(keras.initializers.HeNormal(seed), shape=(16, 24))
    assert len(strategy.placement._first_values._programs) == 1


@pytest.mark.parametrize("inside", [contextlib.nullcontext, jax.ensure_compile_time_eval])
def test_no_program_has_anything_of_the_whole_shape(monkeypatch, inside):
    compiled = []
    program_of = FirstValues._compiled

    def noted(*args):
        program = program_of(*args)

        def call(*given):
            compiled.append(program.lower(*given).compile())
            return compiled[-1](*given)

        return call

    monkeypatch.setattr(FirstValues, "_compiled", noted)
    strategy = rx.FullyShardedStrategy(min_size=8)
    with strategy.scope(), inside():
        keras.Variable(keras.initializers.RandomNormal(0.3, 0.7, 1), shape=(1024, 264))
        keras.Variable(np.ones((1024, 264)))
        rx.Variable(lambda: jnp.ones((1024, 264)) * 3)
    assert len(compiled) == 3
    part = 1024 * 264 * 4 // 8
    for each in compiled:
        assert "[1024,264]" not in each.as_text().split("ENTRY")[-1]
        assert each.memory_analysis().temp_size_in_bytes <= 3.5 * part


def test_an_initializer_that_fails_says_so(strategies):
    def wrong(shape, dtype):
        raise ValueError("not today")

    with strategies["sharded"].scope():
        with pytest.raises(ValueError, match="not today"):
            keras.Variable(wrong, shape=(16, 8))
        with pytest.raises(ValueError, match="not today"):
            rx.Variable(lambda: wrong(None, None))


def test_an_initializer_that_returns_another_shape_is_kerass_affair(strategies):
    with strategies["sharded"].scope():
        variable = keras.Variable(lambda shape, dtype: jnp.ones((4, 4)), shape=(16, 8))
    assert variable.shape == (4, 4)


def test_a_value_that_would_be_whole_on_the_way_is_made_on_one_device(strategies):
    def flat(shape, dtype):
        return jnp.reshape(jax.random.normal(jax.random.key(0), (16 * 8,)) * 2.0, shape)

    with strategies["sharded"].scope():
        variable = keras.Variable(flat, shape=(16, 8))
    makers = strategies["sharded"].placement._first_values
    assert makers.made(traced_value(lambda: flat((16, 8), None)), array_of(variable).sharding, list) is None
    np.testing.assert_array_equal(variable.numpy(), flat((16, 8), None))


@pytest.mark.parametrize("size", [3, 16], ids=["whole", "cut"])
@pytest.mark.parametrize("value", [np.zeros, lambda size: lambda: jnp.zeros(size)], ids=["array", "function"])
def test_a_variable_made_while_a_step_is_traced_has_an_array(strategies, value, size):
    strategy, made = strategies["sharded"], []

    def replica_step(x):
        if not made:
            made.append(rx.Variable(value(size), dtype="float32", trainable=False))
        made[0].assign_add(jnp.ones(size))
        return x.sum() + made[0].value.sum()

    @rx.function
    def step(batch):
        return strategy.run(replica_step, args=(batch,))

    (batch,) = strategy.distribute_dataset([np.zeros(16, "float32")])
    with strategy.scope():
        step(batch)
        step(batch)
    np.testing.assert_array_equal(made[0].numpy(), np.full(size, 2.0))
