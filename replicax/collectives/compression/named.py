"""From what a user writes to a compression."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from replicax.collectives.compression.contract import Compression
from replicax.collectives.compression.int8 import Int8
from replicax.collectives.compression.power_sgd import PowerSGD
from replicax.errors import ArgumentError

BFLOAT16 = "bfloat16"
_OF_GRADIENTS: dict[str, Callable[[], Compression]] = {"int8": Int8, "powersgd": PowerSGD}


def compression_of(value: object) -> Compression | str | None:
    """Returns what `CommunicationOptions(compression=value)` asks for: an object, `"bfloat16"` or None.

    Example:
        >>> compression_of("int8")
        Int8(block_size=256, min_size=1024, error_feedback=True)
    """
    if value is None or isinstance(value, Compression):
        return value
    name = value.lower() if isinstance(value, str) else ""
    if name == BFLOAT16:
        return name
    if name not in _OF_GRADIENTS:
        raise ArgumentError(
            "`compression` must be None, 'bfloat16', 'int8', 'powersgd', an rx.collectives.Int8 or an "
            f"rx.collectives.PowerSGD, got {value!r:.100}."
        )
    return _OF_GRADIENTS[name]()


def is_of_gradients(compression: Compression | str | None) -> TypeGuard[Compression]:
    """Returns whether a compression is for gradients alone, not for every value that is summed."""
    return isinstance(compression, Compression)
