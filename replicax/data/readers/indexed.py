"""Sources with random access that are made of several parts, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Parts:
    """Numbers of rows over several parts, such as files."""

    def __init__(self, sizes: Sequence[int]):
        self.ends = np.cumsum(np.asarray(sizes, np.int64))

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def find(self, index: int) -> tuple[int, int]:
        """Returns the part that row `index` is in, and its number there."""
        if not 0 <= index < len(self):
            raise IndexError(f"There are {len(self)} rows, but row {index} was asked for.")
        part = int(np.searchsorted(self.ends, index, side="right"))
        return part, index - (int(self.ends[part - 1]) if part else 0)

    def split(self, indices: np.ndarray) -> list[tuple[int, np.ndarray | slice, np.ndarray]]:
        """Returns for each part that has some of the rows: their places among `indices`, and their numbers in it."""
        if len(self.ends) == 1:
            return [(0, slice(None), indices)]
        parts = np.searchsorted(self.ends, indices, side="right")
        starts = np.concatenate([[0], self.ends[:-1]])
        return [
            (int(part), at, indices[at] - starts[part])
            for part in np.unique(parts)
            for (at,) in [np.nonzero(parts == part)]
        ]
