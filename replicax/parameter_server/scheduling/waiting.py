"""How long a caller is willing to wait."""

from __future__ import annotations

import numbers
from typing import Any

from replicax.errors import ArgumentError


def check_timeout(timeout: Any) -> None:
    """Checks a timeout that a user gives.

    Raises:
        ArgumentError: It is neither None nor a number of seconds.
    """
    is_number = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and timeout >= 0):
        raise ArgumentError(
            f"A timeout is a number of seconds, or None to wait for as long as it takes; got {timeout!r}."
        )
