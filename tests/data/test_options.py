from __future__ import annotations

import pytest

from replicax.data import InputOptions
from replicax.errors import ArgumentError


def test_defaults():
    assert InputOptions() == InputOptions(prefetch=2, remainder="exact")


@pytest.mark.parametrize("prefetch", [-1, 1.5, None, True])
def test_prefetch_is_a_number_of_steps(prefetch):
    with pytest.raises(ArgumentError, match=f"prefetch.*{prefetch!r}"):
        InputOptions(prefetch=prefetch)


@pytest.mark.parametrize("remainder", ["pad", None, True, ["drop"]])
def test_remainder_is_one_of_two(remainder):
    with pytest.raises(ArgumentError, match=r"exact.*drop.*got"):
        InputOptions(remainder=remainder)
