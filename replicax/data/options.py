"""How a dataset is distributed."""

from __future__ import annotations

import dataclasses

from replicax.errors import ArgumentError

_REMAINDERS = ("exact", "drop")


@dataclasses.dataclass(frozen=True)
class InputOptions:
    """How a dataset is distributed.

    Attributes:
        prefetch: How many steps a background thread keeps ready on the devices; 0 prepares each step when it is
            asked for, in the caller's thread.
        remainder: What happens to a global batch whose rows the replicas cannot share evenly. `"exact"` loses
            nothing: the step runs on as many replicas as divide the rows (7 rows on 8 replicas: on 7; 9 rows: on 3).
            `"drop"` cuts off the last `rows % num_replicas` rows of that batch, and the whole batch if it has fewer
            rows than there are replicas, so that every step runs on all replicas.

    Raises:
        ArgumentError: A value is not one of those.
    """

    prefetch: int = 2
    remainder: str = "exact"

    def __post_init__(self) -> None:
        if isinstance(self.prefetch, bool) or not isinstance(self.prefetch, int) or self.prefetch < 0:
            raise ArgumentError(f"`prefetch` is a number of steps, an int of at least 0, got {self.prefetch!r}.")
        if self.remainder not in _REMAINDERS:
            raise ArgumentError(f"`remainder` is one of {_REMAINDERS}, got {self.remainder!r}.")
