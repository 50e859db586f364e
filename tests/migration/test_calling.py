from __future__ import annotations

import inspect

import numpy as np
import pytest

from replicax.errors import ArgumentError
from replicax.migration import called_as


@called_as("tf.distribute.Strategy.reduce")
def reduce(op, value, *, axis=None):
    """Says what it was given."""
    return op, value, axis


@called_as("tf.distribute.TPUStrategy")
class Strategy:
    def __init__(self, resolver=None):
        self.resolver = resolver


def test_a_keyword_with_another_name_is_passed_on():
    assert reduce(reduce_op="sum", value=1) == ("sum", 1, None)
    assert reduce("sum", 1, axis=0) == ("sum", 1, 0)


def test_a_keyword_under_both_names_is_refused():
    with pytest.raises(ArgumentError, match="`reduce_op` is TensorFlow's name for `op`, and both were given"):
        reduce(reduce_op="sum", op="sum", value=1)


@pytest.mark.parametrize("value", [None, False])
def test_a_value_that_changes_nothing_is_accepted(value):
    assert Strategy("resolver", experimental_spmd_xla_partitioning=value).resolver == "resolver"


@pytest.mark.parametrize("value", [True, 0, np.zeros(2), "no"])
def test_any_other_value_is_refused_with_advice(value):
    with pytest.raises(ArgumentError, match=r"`experimental_spmd_xla_partitioning`.*rx.LayoutStrategy"):
        Strategy(experimental_spmd_xla_partitioning=value)


def test_what_nobody_knows_is_an_ordinary_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing_like_it'") as caught:
        reduce("sum", 1, nothing_like_it=2)
    assert type(caught.value) is TypeError


def test_signature_and_words_stay():
    assert list(inspect.signature(reduce).parameters) == ["op", "value", "axis"]
    assert reduce.__doc__ == "Says what it was given."
    assert isinstance(Strategy, type)
