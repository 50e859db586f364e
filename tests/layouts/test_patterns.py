"""Which rule decides about a variable, and which of an optimizer's variables belongs to which parameter."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import replicax as rx
from replicax.errors import LayoutError
from replicax.layouts import PatternRules, over_data
from replicax.layouts.slots import by_name


def named(*names):
    return [rx.Variable(jnp.zeros((4, 4)), name=name) for name in names]


def test_the_first_pattern_that_is_found_decides():
    rules = PatternRules({"first.*kernel": (None, "model"), "kernel": ("model", None)}, {"model": 2})
    first, other = named("first/kernel", "other/kernel")
    assert rules.decide(first).axes == (None, "model")
    assert rules.unused() == ["kernel"]
    assert rules.decide(other).axes == ("model", None)
    assert rules.unused() == []


def test_each_axis_must_divide_the_dimension_that_it_cuts():
    rules = PatternRules({"kernel": (None, "model")}, {"model": 4})
    for shape, fits in (((3, 8), True), ((8, 6), False)):
        variable = rx.Variable(jnp.zeros(shape), name="kernel")
        if fits:
            assert rules.decide(variable).axes == (None, "model")
        else:
            with pytest.raises(LayoutError, match="must divide what they cut"):
                rules.decide(variable)


def test_the_longest_path_of_several_is_the_parameters():
    parameters = named("dense/kernel", "dense/kernel/extra")
    for order in (parameters, parameters[::-1]):
        for slot, parameter in (
            ("dense_kernel_extra_momentum", parameters[1]),
            ("dense_kernel_momentum", parameters[0]),
        ):
            found = by_name(*named(f"adam/{slot}"), order)
            assert found is not None
            assert found.parameter is parameter


def test_small_variables_stay_whole():
    assert over_data((64, 64), "batch", 8, 64 * 64).axes == ("batch", None)
    small = over_data((64, 63), "batch", 8, 64 * 64)
    assert small.axes == (None, None)
    assert small.why == "4032 elements, fewer than min_size=4096"
