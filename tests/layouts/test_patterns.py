"""Which rule decides about a variable, and which of an optimizer's variables belongs to which parameter."""

from __future__ import annotations

import jax.numpy as jnp

import replicax as rx
from replicax.layouts.decisions import over_data
from replicax.layouts.patterns import PatternRules
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
