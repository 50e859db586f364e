"""What a member gives to newcomers, of several owners: the strategy's variables, and what the script has named."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from replicax.membership.worlds import State


def given(states: Sequence[State]) -> tuple[list[np.ndarray], bytes]:
    """Returns what all of `states` give as one."""
    arrays: list[np.ndarray] = []
    counts, metas = [], []
    for state in states:
        own, meta = state.give()
        arrays += own
        counts.append(len(own))
        metas.append(meta)
    header = json.dumps([counts, list(map(len, metas))]).encode()
    return arrays, b"".join([len(header).to_bytes(8, "big"), header, *metas])


def take(states: Sequence[State], arrays: Sequence[np.ndarray], meta: bytes) -> None:
    """Lets each of `states` take what its counterpart in another process has given (`given`)."""
    size = 8 + int.from_bytes(meta[:8], "big")
    counts, lengths = json.loads(meta[8:size])
    assert len(counts) == len(states)
    at = 0
    for state, count, length in zip(states, counts, lengths, strict=True):
        state.take(arrays[at : at + count], meta[size : size + length])
        at, size = at + count, size + length
