"""The state that a member gives to newcomers, of several owners: the strategy, and what the script has named."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from replicax.contracts.group import State


def given(states: Sequence[State]) -> tuple[list[np.ndarray], bytes]:
    """Returns what all of `states` give as one."""
    arrays: list[np.ndarray] = []
    parts, metas = [], []
    for state in states:
        own, meta = state.give()
        arrays += own
        parts.append([type(state).__name__, len(own), len(meta)])
        metas.append(meta)
    header = json.dumps(parts).encode()
    return arrays, b"".join([len(header).to_bytes(8, "big"), header, *metas])


def take(states: Sequence[State], arrays: Sequence[np.ndarray], meta: bytes) -> list[str]:
    """Lets each of `states` take what one of its class in another process has given (`given`).

    Returns the names of the classes that are not among them.
    """
    size = 8 + int.from_bytes(meta[:8], "big")
    waiting, rest, at = list(states), [], 0
    for kind, count, length in json.loads(meta[8:size]):
        own = next((state for state in waiting if type(state).__name__ == kind), None)
        if own is None:
            rest.append(kind)  # The other process is in the middle of something that this script has not begun.
        else:
            waiting.remove(own)
            own.take(list(arrays[at : at + count]), meta[size : size + length])
        at, size = at + count, size + length
    return rest


# Arrays as one vector of bytes, and back.


_SIZE = 8  # bytes of the header's length


def packed(arrays: Sequence[np.ndarray], meta: bytes = b"") -> np.ndarray:
    """Returns arrays of any shapes and dtypes as one vector of uint8."""
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
