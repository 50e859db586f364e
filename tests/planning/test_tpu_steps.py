"""Steps of many kinds under many strategies, compiled by the compiler of TPUs for real slices."""

from __future__ import annotations

import importlib.util

import pytest

from tests.soak.plan_compiled import compiled_for
from tests.soak.plan_steps import PAIRS, name_of, part_of

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install 'replicax[plan]'"),
]


@pytest.mark.parametrize("on", ["v5e:2x4", "v6e:2x4"])
def test_steps_are_compiled_for_a_slice(on):
    # Each step under two of the four strategies.
    found = list(compiled_for(on, "1/2"))
    assert [each["name"] for each in found] == [name_of(*pair) for pair in part_of(PAIRS, 1, 2)]
    refused = {each["name"]: each["error"] for each in found if not each["compiled"]}
    assert not refused
    assert {(each["devices"], each["hosts"], each["fits"]) for each in found} == {(8, 2, True)}
    assert len(found) >= 30
