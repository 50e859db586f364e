"""What `placement` does is tested through tensors and variables; here are the kinds of values that it takes."""

import jax
import jax.numpy as jnp
import keras
import ml_dtypes
import numpy as np
import pytest

import replicax as rx
from replicax.dtensor import DVariable, Layout, relayout
from replicax.errors import ArgumentError, TensorError


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2, 3, 4], jnp.int32),
        ([1.0, 2, 3, 4], jnp.float32),
        ([True] * 4, jnp.bool_),
        ([1j] * 4, jnp.complex64),
        (np.arange(4.0), jnp.float32),
        (np.arange(4, dtype=np.int8), jnp.int8),
        (np.arange(4, dtype=">f4"), jnp.float32),
        (np.zeros(4, ml_dtypes.bfloat16), jnp.bfloat16),
        (np.zeros(4, np.float16), jnp.float16),
        (np.zeros(8)[::2], jnp.float32),
    ],
)
def test_numbers_and_arrays_take_the_dtypes_of_jax(by_x, value, dtype):
    placed = relayout(value, by_x)
    assert placed.dtype == dtype
    assert placed.sharding == by_x.to_sharding()
    np.testing.assert_array_equal(placed, np.asarray(value).astype(dtype))


def test_single_numbers_can_be_placed(mesh):
    everywhere = Layout([], mesh)
    assert relayout(3, everywhere).dtype == jnp.int32
    assert relayout(np.float16(3), everywhere).dtype == jnp.float16


@pytest.mark.parametrize(
    "value", ["abc", None, object(), ["a"], [[1], [2, 3]], np.array(["a"]), np.array([None]), np.zeros(4, [("a", int)])]
)
def test_other_things_are_refused(by_x, value):
    with pytest.raises(TensorError, match="Expected an array, a variable or numbers, got"):
        relayout(value, by_x)


@pytest.mark.parametrize("layout", [None, "x", ["x"]])
def test_a_layout_is_asked_for(layout):
    with pytest.raises(ArgumentError, match=r"Expected an rx.dtensor.Layout, got"):
        relayout([1], layout)


def test_variables_stand_for_their_values(mesh, by_x):
    everywhere = Layout.replicated(mesh, 1)
    variables = [DVariable(np.arange(4.0), layout=everywhere), rx.Variable(np.arange(4.0, dtype=np.float32))]
    variables.append(keras.Variable(np.arange(4), dtype="float16"))
    for variable in variables:
        placed = relayout(variable, by_x)
        assert placed.sharding == by_x.to_sharding()
        assert placed.dtype == variable.dtype
        traced = rx.function(lambda variable=variable: relayout(variable, by_x) + 1)()
        np.testing.assert_array_equal(traced, [1, 2, 3, 4])


def test_random_keys_are_arrays_too(by_x):
    keys = jax.random.split(jax.random.key(0), 4)
    assert relayout(keys, by_x).sharding.is_equivalent_to(by_x.to_sharding(), 1)
