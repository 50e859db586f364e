import math

import numpy as np
import pytest

from replicax.checks import checked_int, checked_seconds, is_int, is_real
from replicax.errors import ArgumentError


@pytest.mark.parametrize(
    ("value", "integer", "real"),
    [(1, True, True), (np.int32(1), True, True), (True, False, False), (1.5, False, True), ("1", False, False)],
)
def test_a_bool_is_no_number(value, integer, real):
    assert (is_int(value), is_real(value)) == (integer, real)


@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None])
def test_an_argument_that_is_no_int_of_the_range_is_an_error_with_its_value(value):
    with pytest.raises(ArgumentError, match=rf"`size` must be an int of at least 0, or None, got {value!r}\."):
        checked_int("size", value, note=", or None")


def test_an_int_comes_back_as_a_plain_int():
    assert type(checked_int("size", np.int64(3), least=3)) is int


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, True, "1", None])
def test_a_time_is_positive_and_finite(value):
    with pytest.raises(ArgumentError, match=r"`timeout` must be a positive number of seconds, got "):
        checked_seconds("timeout", value)


def test_zero_and_infinity_are_times_where_the_argument_allows_them():
    assert (checked_seconds("timeout", 0, zero=True), checked_seconds("timeout", math.inf, infinite=True)) == (
        0,
        math.inf,
    )
