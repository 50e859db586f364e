"""Steps of many kinds under many strategies, compiled by the compiler of TPUs for real slices."""

from __future__ import annotations

import importlib.util

import pytest

import replicax as rx
from tests.soak.plan_steps import PAIRS, name_of, part_of

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install 'replicax[plan]'"),
]
#: Each step under two of the four strategies.
CHOSEN = part_of(PAIRS, 1, 2)
SLICES = {"v5e:2x4": 2, "v6e:2x4": 2}  # with the number of their hosts


@pytest.mark.parametrize("on", SLICES)
@pytest.mark.parametrize("pair", CHOSEN, ids=lambda pair: name_of(*pair))
def test_it_is_compiled_for_a_slice(pair, on):
    step, make = pair
    plan = rx.plan(step, strategy=make, on=on)
    assert plan.memory is not None, plan.refused
    assert plan.memory.by.startswith("libtpu ")
    assert (plan.on.size, plan.hosts) == (8, SLICES[on])
    assert plan.fits
