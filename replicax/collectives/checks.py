"""Checks of arguments that several cross-device ops share."""

from __future__ import annotations

from replicax.checks import checked_int


def check_num_packs(num_packs: object) -> None:
    """Raises `ArgumentError` unless `num_packs` is an int of at least 0."""
    checked_int("num_packs", num_packs, note=" (0: no packs)")
