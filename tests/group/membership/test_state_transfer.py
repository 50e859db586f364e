"""The states of several owners travel as one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from replicax.group.membership.state_transfer import given, take


class State:
    def __init__(self, *values: float):
        self.values = values

    def give(self):
        return [np.array([value]) for value in self.values], repr(self.values).encode()

    def take(self, arrays, meta):
        assert meta == repr(tuple(float(array[0]) for array in arrays)).encode()
        self.values = tuple(float(array[0]) for array in arrays)


class OfStrategy(State):
    pass


class OfFit(State):
    pass


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2])))
def test_each_takes_what_one_of_its_class_gave_in_any_order(order):
    own = [OfStrategy(), OfStrategy(), OfFit()]
    rest = take([own[i] for i in order], *given([OfStrategy(1.0, 2.0), OfFit(), OfStrategy(3.0)]))
    assert rest == []
    strategies = [own[i].values for i in order if i < 2]
    assert strategies == [(1.0, 2.0), (3.0,)]


def test_a_part_without_a_taker_is_named():
    own = OfStrategy()
    assert take([own], *given([OfFit(5.0, 6.0), OfStrategy(1.0)])) == ["OfFit"]
    assert own.values == (1.0,)
