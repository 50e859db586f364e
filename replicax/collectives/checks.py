"""Checks of arguments that several cross-device ops share."""

from __future__ import annotations

from replicax.errors import ArgumentError


def check_num_packs(num_packs: object) -> None:
    """Raises `ArgumentError` unless `num_packs` is an int of at least 0."""
    if isinstance(num_packs, bool) or not isinstance(num_packs, int) or num_packs < 0:
        raise ArgumentError(f"`num_packs` must be an int of at least 0 (0: no packs), got {num_packs!r}.")
