from __future__ import annotations

import numpy as np
import pytest

from replicax.errors import ArgumentError
from replicax.parameter_server.scheduling.remote_values import RemoteValue, check_timeout


@pytest.mark.parametrize("timeout", ["x", True, -1, float("nan"), [1]])
def test_what_is_no_number_of_seconds_is_refused(timeout):
    with pytest.raises(ArgumentError, match="number of seconds"):
        check_timeout(timeout)
    with pytest.raises(ArgumentError, match="number of seconds"):
        RemoteValue().fetch(timeout)


@pytest.mark.parametrize("timeout", [None, 0, 1.5, np.float32(2)])
def test_numbers_and_none_are_not(timeout):
    check_timeout(timeout)
