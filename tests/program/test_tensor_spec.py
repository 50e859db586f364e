from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError


def test_it_has_a_shape_with_open_sizes_and_a_dtype():
    spec = rx.TensorSpec([None, 3], jnp.bfloat16, name="x")
    assert (spec.shape, spec.dtype, spec.name) == ((None, 3), jnp.dtype("bfloat16"), "x")
    assert rx.TensorSpec(()).dtype == np.float32
    assert hash(rx.TensorSpec([2])) == hash(rx.TensorSpec((2,)))


@pytest.mark.parametrize("shape", [3, None, (-1, 3), ("a",), (True,), (2.0,)])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(ArgumentError, match="`shape` is a list or tuple"):
        rx.TensorSpec(shape)


def test_what_is_no_dtype_is_refused():
    with pytest.raises(ArgumentError, match="`dtype` is a dtype"):
        rx.TensorSpec((), "float33")
