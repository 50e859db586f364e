"""Arrays as one vector of bytes, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

_SIZE = 8  # bytes of the header's length


def packed(arrays: Sequence[np.ndarray], meta: bytes = b"") -> np.ndarray:
    """Returns arrays of any shapes and dtypes as one vector of uint8.

    Args:
        arrays: The arrays.
        meta: What else travels with them.
    """
    kinds = json.dumps([[array.dtype.name, array.shape] for array in arrays]).encode()
    header = len(kinds).to_bytes(_SIZE, "big") + len(meta).to_bytes(_SIZE, "big") + kinds + meta
    bodies = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays)
    return np.concatenate([np.frombuffer(header, np.uint8), *bodies])


def unpacked(vector: np.ndarray) -> tuple[list[np.ndarray], bytes]:
    """Returns the arrays in a vector that `packed` has returned, and what came with them."""
    size, extra = (int.from_bytes(vector[i : i + _SIZE].tobytes(), "big") for i in (0, _SIZE))
    at = 2 * _SIZE + size + extra
    kinds = json.loads(vector[2 * _SIZE : 2 * _SIZE + size].tobytes())
    arrays = []
    for name, shape in kinds:
        dtype = np.dtype(name)
        end = at + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        arrays.append(np.array(vector[at:end]).view(dtype).reshape(shape))
        at = end
    return arrays, vector[2 * _SIZE + size : 2 * _SIZE + size + extra].tobytes()
