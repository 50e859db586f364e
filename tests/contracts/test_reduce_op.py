from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.contracts.reduce_op import terms_of
from replicax.errors import ReduceError


@pytest.mark.parametrize("spelling", ["sum", "SUM", "Sum", rx.ReduceOp.SUM])
def test_an_op_may_be_named_in_any_case(spelling):
    assert rx.ReduceOp.of(spelling) is rx.ReduceOp.SUM


def test_mean_is_the_only_other_op():
    assert rx.ReduceOp.of("mean") is rx.ReduceOp.MEAN
    assert [op.value for op in rx.ReduceOp] == ["sum", "mean"]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "float32", "complex64"])
@pytest.mark.parametrize("number", [1, 3, 8])
def test_terms_add_up_to_the_total_in_any_order(dtype, number):
    total = jnp.asarray(np.random.default_rng(0).uniform(0, 100, (5, 2)), dtype)
    terms = np.asarray(terms_of(total, number))
    assert terms.shape == (number, 5, 2)
    for order in (terms, terms[::-1]):
        np.testing.assert_array_equal(functools.reduce(np.add, order), total)


@pytest.mark.parametrize("wrong", ["max", "", None, 1, sum, b"sum"])
def test_an_unknown_op_is_named_together_with_those_that_exist(wrong):
    with pytest.raises(ReduceError) as caught:
        rx.ReduceOp.of(wrong)
    assert repr(wrong) in str(caught.value)
    assert "'sum'" in str(caught.value)
    assert "'mean'" in str(caught.value)
