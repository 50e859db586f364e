"""How long a caller is willing to wait."""

from __future__ import annotations

from replicax.checks import is_real
from replicax.errors import ArgumentError


def check_timeout(timeout: object) -> None:
    """Checks a timeout that a user gives: None, or a number of seconds."""
    if timeout is not None and not (is_real(timeout) and timeout >= 0):
        raise ArgumentError(
            f"A timeout is a number of seconds, or None to wait for as long as it takes; got {timeout!r}."
        )
