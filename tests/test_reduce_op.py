from __future__ import annotations

import pytest

import replicax as rx
from replicax.errors import ReduceError


@pytest.mark.parametrize("spelling", ["sum", "SUM", "Sum", rx.ReduceOp.SUM])
def test_an_op_may_be_named_in_any_case(spelling):
    assert rx.ReduceOp.of(spelling) is rx.ReduceOp.SUM


def test_mean_is_the_only_other_op():
    assert rx.ReduceOp.of("mean") is rx.ReduceOp.MEAN
    assert [op.value for op in rx.ReduceOp] == ["sum", "mean"]


@pytest.mark.parametrize("wrong", ["max", "", None, 1, sum, b"sum"])
def test_an_unknown_op_is_named_together_with_those_that_exist(wrong):
    with pytest.raises(ReduceError) as caught:
        rx.ReduceOp.of(wrong)
    assert repr(wrong) in str(caught.value)
    assert "'sum'" in str(caught.value)
    assert "'mean'" in str(caught.value)
